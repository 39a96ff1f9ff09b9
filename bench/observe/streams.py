"""Random numbers: which generators are drawn from while a batch is fetched or a step is trained, and whether those of
two ranks are in the same state.

Only the states are looked at, as they are before and after; nothing is drawn.
"""

import hashlib
import itertools
import json
import mmap
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_start_method
from typing import ClassVar

import numpy as np
import torch
from torch.utils.data import _DatasetKind, get_worker_info

from bench.observe.probe import Probe, Unheard
from bench.observe.view import Epoch, chosen

EPOCHS = 6  # that are looked at: validations may come first
FETCHES = 2  # of each loading process, and steps, whose random states are looked at
HELD = 300  # objects of a data set that are searched for generators
DEPTH = 5
SLOT = 4096  # bytes that a worker has to write down what it saw
WORKERS = 64

State = tuple[str, str]  # what stays while numbers are drawn, and what does not, as hashes
Fetch = dict[str, tuple[str, str, bool]]  # generator -> state before and after, and whether it was only drawn from


def digest(value) -> str:
    """A short hash."""
    return hashlib.blake2b(value if isinstance(value, bytes) else repr(value).encode(), digest_size=8).hexdigest()


def state_of_torch(state: torch.Tensor) -> State:
    """torch's: the seed stands first, on a CPU and on a GPU. state: [bytes] uint8."""
    raw = state.numpy().tobytes()
    return digest(raw[:8]), digest(raw)


def state_of_python(state: tuple) -> State:
    """Python's Mersenne Twister: 624 words and the place among them. Drawing replaces the words now and then."""
    return digest(state[1][:-1]), digest(state)


def state_of_numpy(state: dict) -> State:
    """NumPy's: the words of a Mersenne Twister, the increment of a PCG64."""
    inner = state["state"]
    if not isinstance(inner, dict):
        return digest(repr(state)), digest(repr(state))
    stays = inner.get("inc", inner.get("key"))
    plain = {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in inner.items()}
    return digest(stays.tobytes() if isinstance(stays, np.ndarray) else stays), digest((plain, state.get("has_gauss")))


def state_of(generator) -> State:
    """The state of a generator that an object holds."""
    if isinstance(generator, torch.Generator):
        return state_of_torch(generator.get_state())
    if isinstance(generator, random.Random):
        return state_of_python(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return state_of_numpy(generator.get_state(legacy=False))
    return state_of_numpy(generator.bit_generator.state)


GENERATORS = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)


def global_states(on_gpu: bool = False) -> dict[str, State]:
    """The generators that belong to the process."""
    states = {
        "torch": state_of_torch(torch.get_rng_state()),
        "random": state_of_python(random.getstate()),
        "numpy": state_of_numpy(np.random.get_state(legacy=False)),
    }
    if on_gpu and torch.cuda.is_initialized():
        states["torch.cuda"] = state_of_torch(torch.cuda.get_rng_state())
    return states


def held(data, name: str = "dataset") -> Iterator[tuple[str, object]]:
    """Generators that a data set, its transforms and what they are made of hold as attributes."""
    todo, seen = [(name, data, DEPTH)], set()
    while todo and len(seen) < HELD:
        path, item, depth = todo.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, GENERATORS):
            if not isinstance(item, random.SystemRandom):
                yield path, item
        elif depth:
            todo += [(f"{path}{at}", part, depth - 1) for at, part in parts_of(item)]


def parts_of(item) -> Iterable[tuple[str, object]]:
    """What an object is made of and may hold a generator."""
    if isinstance(item, torch.Tensor | np.ndarray | type) or callable(getattr(item, "__code__", None)):
        return []
    if isinstance(item, dict):
        pairs = [(f"[{key!r}]", value) for key, value in itertools.islice(item.items(), 50)]
    elif isinstance(item, list | tuple):
        pairs = [(f"[{place}]", value) for place, value in enumerate(item[:50])]
    else:
        pairs = [(f".{key}", value) for key, value in list(getattr(item, "__dict__", {}).items())]
    plain = (str, bytes, int, float, bool, type(None))
    return [(at, value) for at, value in pairs if not isinstance(value, plain)]


class Fetches:
    """The random states of a process before and after it fetches batches, the first FETCHES of them."""

    def __init__(self, data):
        self.generators = dict(held(data))
        self.begun, self.seen = None, []

    def states(self) -> dict[str, State]:
        """As they are now."""
        return global_states() | {name: state_of(generator) for name, generator in self.generators.items()}

    def begins(self) -> None:
        """A batch is fetched next."""
        if len(self.seen) < FETCHES:
            self.begun = self.states()

    def ends(self) -> None:
        """It is there."""
        if self.begun:
            self.seen.append(used(self.begun, self.states()))
            self.begun = None


def used(before: dict[str, State], after: dict[str, State]) -> Fetch:
    """The generators that are in another state than before."""
    return {name: (before[name][1], stands[1], before[name][0] == stands[0])
            for name, stands in after.items() if name in before and before[name] != stands}  # fmt: skip


# --- workers ------------------------------------------------------------------------------------------------------

here = threading.local()  # .notes: where a worker writes that this thread forks now
hooked = []  # what runs in a forked process stays for the life of this one, so it is put up once


def in_child() -> None:
    """In a forked process: if it is a loader's worker, let its first fetches be seen. The process that trains is
    another one: here torch's own class may be changed."""
    notes = getattr(here, "notes", None)
    if notes is None:
        return
    here.notes = None
    from torch.utils.data._utils import fetch

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = seen_in_worker(kind.fetch, notes)


def seen_in_worker(fetch: Callable, notes: mmap.mmap) -> Callable:
    """A fetcher's ``fetch`` that writes down the random states of its first calls."""
    watching = []

    def fetch_and_look(fetcher, index):
        worker = get_worker_info()
        if worker is None or worker.id >= WORKERS or (watching and len(watching[0].seen) >= FETCHES):
            return fetch(fetcher, index)
        try:
            if not watching:
                watching.append(Fetches(fetcher.dataset))
            watching[0].begins()
        except Exception:  # whatever a data set's attributes are
            return fetch(fetcher, index)
        batch = fetch(fetcher, index)
        try:
            watching[0].ends()
            text = json.dumps(watching[0].seen).encode()
            notes[worker.id * SLOT : worker.id * SLOT + len(text)] = text[:SLOT]
        except Exception:
            watching[0].seen = [{}] * FETCHES
        return batch

    return fetch_and_look


def read(notes: mmap.mmap | None) -> dict[int, list[Fetch]]:
    """What each worker wrote."""
    found = {}
    if notes is None:
        return found
    for worker in range(WORKERS):
        text = notes[worker * SLOT : (worker + 1) * SLOT].rstrip(b"\0")
        if text:
            try:
                found[worker] = json.loads(text)
            except ValueError:  # half-written, or too long
                continue
    return found


# --- the ranks' streams put together ------------------------------------------------------------------------------


def same_stream(one: list[Fetch], other: list[Fetch]) -> list[str]:
    """The generators from which two processes draw the same numbers.

    They do when both start a fetch from the same state and only draw on from there. Where a fetch seeds the generator
    anew, by the example perhaps, they do when all fetches begin alike, or all end alike.
    """
    names = [name for name in (one[0] if one and other else {}) if name in other[0]]
    return [name for name in names if alike([f[name] for f in one if name in f], [f[name] for f in other if name in f])]


def alike(one: list, other: list) -> bool:
    """Whether two processes' states of one generator come from the same stream."""
    if one[0][2] and other[0][2]:
        return one[0][0] == other[0][0]
    pairs = list(zip(one, other, strict=False))
    return len(pairs) > 1 and any(all(a[when] == b[when] for a, b in pairs) for when in (0, 1))


def same_in_workers(processes: dict[str | int, list[Fetch]]) -> set[str]:
    """The generators from which two loading processes of one rank draw the same numbers."""
    return {name for one, other in itertools.combinations(processes.values(), 2) for name in same_stream(one, other)}


def same_in_epochs(epochs: list[dict[str | int, list[Fetch]]]) -> set[str]:
    """The generators that start two epochs from the same state. Of one that is seeded within a fetch, by the example
    perhaps, that is not known."""
    firsts = [{(name, before) for fetches in epoch.values() for name, (before, _, only) in fetches[0].items() if only}
              for epoch in epochs]  # fmt: skip
    return {name for one, other in itertools.combinations(firsts, 2) for name, _ in one & other}


def seeded_anew(epochs: list[dict[str | int, list[Fetch]]]) -> set[str]:
    """The generators that are seeded while batches are fetched."""
    return {name for epoch in epochs for fetches in epoch.values() for fetch in fetches
            for name, (_, _, only) in fetch.items() if not only}  # fmt: skip


def streams_of(ranks: list[dict]) -> dict | None:
    """A name for the stream of each rank, the same where two ranks' processes have one in common; None where none of
    them drew a number. A part: process -> its fetches."""
    names, shared = list(range(len(ranks))), set()
    for rank, processes in enumerate(ranks):
        for before in range(rank):
            found = {name for one in processes.values() for other in ranks[before].values()
                     for name in same_stream(one, other)}  # fmt: skip
            if found:
                names[rank], shared = names[before], shared | found
                break
    drew = any(fetch for processes in ranks for fetches in processes.values() for fetch in fetches)
    return {"streams": [str(name) for name in names], "generators": sorted(shared)} if drew else None


def augmentation_of(ranks: list[dict]) -> dict:
    """The streams that the ranks' examples are augmented from.

    A part has "epochs", the processes of each with their fetches, and whether they are "of_a_stream", which may shuffle
    itself; or "spawned" for workers that are not seen: the seed that they start from, None where a function of the
    script seeds them, or the data set holds a generator, of which each worker has a copy; and "later" epochs' seeds.
    """
    if any("spawned" in rank for rank in ranks):
        seeds = [rank.get("spawned") for rank in ranks]
        every = seeds + [seed for rank in ranks for seed in rank.get("later", [])]
        if None not in every and len(set(every)) == len(every):
            return {"streams": [str(seed) for seed in seeds], "generators": []}
        among = "ranks" if len(set(seeds)) < len(seeds) else "epochs"
        why = "" if None in every else f", and those of several {among} start from one seed"
        raise Unheard(f"workers that are spawned are not seen{why}")
    if (streams := streams_of([rank["epochs"][0] for rank in ranks])) is None:
        raise Unheard("no random number was drawn while batches were fetched")
    within = {"workers": {name for rank in ranks for name in same_in_workers(rank["epochs"][0])},
              "again": {name for rank in ranks for name in same_in_epochs(rank["epochs"])}}  # fmt: skip
    anew = {name for rank in ranks for name in seeded_anew(rank["epochs"]) if len(rank["epochs"]) > 1}
    if anew and len(set(streams["streams"])) == len(ranks) and not any(within.values()):
        raise Unheard(f"each fetch seeds {', '.join(sorted(anew))}: whether epochs repeat themselves is not known")
    streams |= {name: sorted(found) for name, found in within.items()}
    return streams | {"of_a_stream": any(rank["of_a_stream"] for rank in ranks)}


def random_of(ranks: list[dict]) -> dict:
    """The streams that the ranks' steps draw from."""
    if (streams := streams_of(ranks)) is None:
        raise Unheard("no random number was drawn in the first two steps")
    return streams


def length_of(data) -> int | None:
    """A data set's length, if it has one."""
    try:
        return len(data)
    except Exception:  # whatever a data set answers
        return None


class Augmentation(Probe):
    """The random numbers that are drawn while batches are fetched, here or by forked workers."""

    joins: ClassVar = {"augmentation": augmentation_of}
    silent: ClassVar = {"augmentation": "no batch of torch's DataLoader was seen"}

    def __init__(self, watch):
        super().__init__(watch)
        self.epochs: list[Epoch] = []
        self.here: dict[Epoch, Fetches] = {}
        self.notes: dict[Epoch, mmap.mmap] = {}
        self.spawned: dict[Epoch, int | None] = {}
        self.sets: dict[Epoch, tuple] = {}  # what tells its data set from another one
        self.streams: set[Epoch] = set()  # whose data set is an IterableDataset
        self.iterators = weakref.WeakSet()  # that have started workers which are not seen
        if not hooked and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=in_child)
            hooked.append(in_child)

    def before_iter(self, epoch) -> None:
        if len(self.epochs) < EPOCHS:
            self.epochs.append(epoch)
            if getattr(epoch.loader, "num_workers", 1):
                self.notes[epoch] = here.notes = mmap.mmap(-1, SLOT * WORKERS)  # shared with what is forked

    def after_iter(self, epoch, iterator) -> None:
        here.notes = None

    def asked(self, epoch) -> None:
        if epoch.taken == 0:  # a loader of one's own may start its workers now
            here.notes = self.notes.get(epoch)

    def drawn(self, epoch, iterator, indices) -> None:
        if epoch not in self.epochs:
            return
        data = iterator._dataset
        if epoch not in self.sets:
            self.sets[epoch] = type(data), length_of(data)
        if iterator._dataset_kind == _DatasetKind.Iterable:
            self.streams.add(epoch)
        if not iterator._num_workers:
            if epoch not in self.here:
                self.here[epoch] = Fetches(data)
            self.here[epoch].begins()
        elif (iterator._workers[0]._start_method or get_start_method()) != "fork" and iterator not in self.iterators:
            self.iterators.add(iterator)  # workers that stay draw on
            own = iterator._worker_init_fn is not None or any(held(data))
            self.spawned[epoch] = None if own else iterator._base_seed

    def fetched(self, epoch, batch) -> None:
        here.notes = None
        if epoch in self.here:
            self.here[epoch].ends()

    def epoch_ended(self, epoch) -> None:
        here.notes = None

    def close(self) -> None:
        here.notes = None

    def part(self) -> dict:
        trained = [epoch for epoch in chosen([epoch for epoch in self.epochs if epoch.taken]) if epoch in self.sets]
        same = [epoch for epoch in trained if self.sets[epoch] == self.sets[trained[0]]]
        if seeds := [self.spawned[epoch] for epoch in same if epoch in self.spawned]:
            return {"augmentation": {"spawned": seeds[0], "later": seeds[1:]}}
        seen = [
            {"here": self.here[epoch].seen} if epoch in self.here else read(self.notes.get(epoch)) for epoch in same
        ]
        seen = [processes for processes in seen if processes and all(processes.values())]
        return {"augmentation": {"epochs": seen, "of_a_stream": same[0] in self.streams} if seen else None}


class StepRandom(Probe):
    """The random numbers that are drawn from one optimizer step to the next: for dropout, or for noise.

    What is drawn while a loader begins or a batch is fetched is the augmentation's, and is left out: each of them ends
    a stretch of the window that is open, and another one follows. Where another thread fetches, it is counted in.
    """

    joins: ClassVar = {"random": random_of}
    silent: ClassVar = {"random": "fewer than two steps of an epoch were seen"}

    def __init__(self, watch):
        super().__init__(watch)
        self.seen: dict[Epoch, list[Fetch]] = {}  # the first windows of each epoch
        self.open: dict[Epoch, Fetch | None] = {}  # the window now; None: it opens with the next step
        self.states = self.fetcher = None  # at the beginning of this stretch; the thread that fetches
        self.apart, self.stepped = False, set()

    def begins(self) -> None:
        """A stretch begins."""
        self.states = global_states(on_gpu=True) if self.open else None

    def ends(self) -> None:
        """A stretch has ended: what did it draw?"""
        if self.states is None:
            return
        drawn, self.states = used(self.states, global_states(on_gpu=True)), None
        for window in self.open.values():
            for name, (before, after, only) in drawn.items() if window is not None else ():
                first = window.get(name, (before, after, True))
                window[name] = first[0], after, first[2] and only

    def before_iter(self, epoch) -> None:
        if not self.apart:
            self.ends()

    def after_iter(self, epoch, iterator) -> None:
        if not self.apart:
            self.begins()

    def asked(self, epoch) -> None:
        self.before_iter(epoch)

    def fetched(self, epoch, batch) -> None:
        self.fetcher = threading.get_ident()
        if epoch.taken == 1 and len(self.seen) < EPOCHS:
            self.seen[epoch], self.open[epoch] = [], None if self.apart else {}
        self.after_iter(epoch, None)

    def epoch_ended(self, epoch) -> None:
        self.after_iter(epoch, None)  # its batches may all be fetched before the first step

    def after_step(self, optimizer) -> None:
        """Several optimizers that step in turn make one step: it ends with the one that ended the last one."""
        if not self.open or self.watch.stepping or not self.watch.steps_model(optimizer):
            return
        self.ends()
        if id(optimizer) in self.stepped or not self.stepped:
            self.stepped = set()
            self.window_ends()
        self.stepped.add(id(optimizer))
        self.begins()

    def window_ends(self) -> None:
        """A step has been taken: the next window of each epoch."""
        if not self.apart and self.fetcher != threading.get_ident():
            self.apart = True  # so the first one was not seen from its beginning
            self.open = dict.fromkeys(self.open)
        for epoch, window in list(self.open.items()):
            if window is not None:
                self.seen[epoch].append(window)
            self.open[epoch] = {}
            if len(self.seen[epoch]) == FETCHES:
                del self.open[epoch]

    def part(self) -> dict:
        whole = [epoch for epoch, steps in self.seen.items() if len(steps) == FETCHES]
        trained = chosen(whole)
        if not trained:
            return {}
        steps = self.seen[trained[0]]
        always = set.intersection(*map(set, steps))  # what is drawn now and then is a choice
        if any(steps) and not always:
            raise Unheard("random numbers were drawn in one of the first two steps only")
        return {"random": {"step": [{name: step[name] for name in always} for step in steps]}}
