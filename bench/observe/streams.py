"""Random numbers: which generators are drawn from while a batch is fetched or a step is trained, and whether those of
two ranks are in the same state.

Only the states are looked at, as they are before and after; numbers are drawn from copies alone.
"""

import functools
import hashlib
import itertools
import json
import mmap
import os
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
NUMBERS_PER_S = 500_000_000  # that a thread draws at most
MOST_NUMBERS = 1 << 25  # that are drawn from a copy

Fetch = dict[str, tuple[str, str, bool]]  # generator -> state before and after, and whether it was only drawn from


def digest(value) -> str:
    """A short hash."""
    return hashlib.blake2b(value if isinstance(value, bytes) else repr(value).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class State:
    """A generator's state. whole: a hash of it. seed: what stays while numbers are drawn, where there is such a thing.
    bits: elsewhere the state of the bit generator of NumPy's that draws the same numbers. All words of a Mersenne
    Twister are replaced by every 624th number, and by the first one after a seed. fresh: no number has been drawn since
    it was seeded, as far as the state tells."""

    whole: str
    seed: str = ""
    bits: dict | None = None
    fresh: bool = False

    def comes_to(self, later: "State", seconds: float) -> bool:
        """Whether it comes to the later state if numbers are drawn, as many as can be drawn in this time."""
        if self.bits is None or later.bits is None:
            return self.seed == later.seed and not later.fresh
        return draws_on(self.bits, later.bits, min(MOST_NUMBERS, 10_000 + int(seconds * NUMBERS_PER_S)))


def draws_on(before: dict, after: dict, most: int) -> bool:
    """Whether a bit generator of NumPy's that draws on from one state comes to another one: whether what it would draw
    next is among what a copy draws."""
    kind = getattr(np.random, before["bit_generator"], None)
    if kind is None or before["bit_generator"] != after["bit_generator"]:
        return False
    copy, later = kind(0), kind(0)
    copy.state, later.state = before, after
    coming, numbers, drawn, more = later.random_raw(4), copy.random_raw(3), 0, 1024
    while drawn < most:
        numbers = np.concatenate([numbers[-3:], copy.random_raw(more)])
        if any((numbers[at : at + 4] == coming).all() for at in np.flatnonzero(numbers[:-3] == coming[0])):
            return True
        drawn, more = drawn + more, min(2 * more, 1 << 18)
    return False


def state_of_torch(state: torch.Tensor) -> State:
    """torch's: the seed stands first, on a CPU and on a GPU, and how far it is next. state: [bytes] uint8."""
    raw = state.numpy().tobytes()
    return State(digest(raw), digest(raw[:8]), fresh=not any(raw[16:24] or raw[8:16]))


def state_of_python(state: tuple) -> State:
    """Python's Mersenne Twister: 624 words, and the place among them."""
    *words, place = state[1]
    return state_of_numpy({"bit_generator": "MT19937", "state": {"key": np.array(words, np.uint32), "pos": place},
                           "gauss": state[2]})  # fmt: skip


def state_of_numpy(state: dict) -> State:
    """NumPy's, of any bit generator."""
    return State(digest(with_bytes(state)), bits=state, fresh=state["state"].get("pos") == 624)


def with_bytes(value):
    """A dict of dicts, with bytes for its arrays."""
    if isinstance(value, dict):
        return {name: with_bytes(part) for name, part in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


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


def held(**roots) -> Iterator[tuple[str, object]]:
    """Generators that a data set, its transforms and what they are made of hold as attributes, and those in their
    classes and modules."""
    todo, seen, spaces = [(name, root, DEPTH) for name, root in roots.items()], set(), set()
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
            todo += [(name, part, 0) for name, part in generators_around(item, spaces)]


def parts_of(item) -> Iterable[tuple[str, object]]:
    """What an object is made of and may hold a generator."""
    if isinstance(item, torch.Tensor | np.ndarray | type | types.ModuleType):
        return []
    if isinstance(item, dict):
        pairs = [(f"[{key!r}]", value) for key, value in itertools.islice(item.items(), 50)]
    elif isinstance(item, list | tuple):
        pairs = [(f"[{place}]", value) for place, value in enumerate(item[:50])]
    else:
        pairs = [(f".{key}", value) for key, value in list(getattr(item, "__dict__", {}).items())]
        pairs += [(f".{key}", getattr(item, key)) for key in UNLISTED.get(type(item), ())]
        pairs += [(f".{key}", cell.cell_contents) for key, cell in cells_of(item) if cell != types.CellType()]
    plain = (str, bytes, int, float, bool, type(None))
    return [(at, value) for at, value in pairs if not isinstance(value, plain)]


UNLISTED = {functools.partial: ("func", "args", "keywords"), types.MethodType: ("__self__",)}  # not in __dict__


def cells_of(function) -> Iterable[tuple[str, types.CellType]]:
    """The variables that a function has from where it was made."""
    if not isinstance(function, types.FunctionType):
        return []
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)


def generators_around(item, looked_at: set) -> Iterator[tuple[str, object]]:
    """The generators in an object's classes and module, but for those of ``global_states``."""
    module = sys.modules.get(getattr(item, "__module__", None))
    of_process = (torch.default_generator, random._inst, np.random.mtrand._rand)
    for space in (module, *type(item).__mro__):
        if isinstance(space, type | types.ModuleType) and id(space) not in looked_at:
            looked_at.add(id(space))
            for name, part in list(vars(space).items()):
                if issubclass(type(part), GENERATORS) and not any(part is each for each in of_process):
                    yield f"{space.__name__}.{name}", part


MADE = State("", "made")  # of a generator that is not there yet


class Fetches:
    """The random states of a process before and after it fetches batches, the first FETCHES of them. seeded: the states
    of the generators that fetches of this process have seeded, for all of its Fetches; roots: what may hold generators,
    by name."""

    def __init__(self, seeded: dict[str, str], **roots):
        self.seeded, self.roots = seeded, roots
        self.begun, self.since, self.seen = None, 0.0, []

    def states(self) -> dict[str, State]:
        """As they are now."""
        return global_states() | {name: state_of(generator) for name, generator in held(**self.roots)}

    def begins(self) -> None:
        """A batch is fetched next."""
        if len(self.seen) < FETCHES:
            self.begun, self.since = self.states(), time.thread_time()

    def ends(self) -> bool:
        """It is there; returns whether its states were looked at. A generator that is again in the state to which a
        fetch has seeded it has been seeded alike."""
        if self.begun:
            seconds, now = time.thread_time() - self.since, self.states()
            fetch = used(dict.fromkeys(now, MADE) | self.begun, now, seconds)
            alike = [name for name, state in self.seeded.items() if name in now and now[name].whole == state]
            fetch = {name: seen for name, seen in fetch.items() if seen[2] or not now[name].fresh}
            self.seen.append({name: (self.seeded[name], self.seeded[name], False) for name in alike} | fetch)
            self.seeded.update({name: after for name, (_, after, only) in fetch.items() if not only})
            self.begun = None
            return True
        return False


def used(before: dict[str, State], after: dict[str, State], seconds: float = 1.0) -> Fetch:
    """The generators that are in another state than before, after this time."""
    return {name: (before[name].whole, stands.whole, before[name].comes_to(stands, seconds))
            for name, stands in after.items() if name in before and before[name].whole != stands.whole}  # fmt: skip


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
    """A fetcher's ``fetch`` that writes down the random states of its first calls. A worker that stays has another
    fetcher in each epoch."""
    fetchers, watching, seeded = [], [], {}

    def fetch_and_look(fetcher, index):
        worker = get_worker_info()
        if worker is None or worker.id >= WORKERS or len(fetchers) > EPOCHS:
            return fetch(fetcher, index)
        try:
            if not fetchers or fetchers[-1]() is not fetcher:
                fetchers.append(weakref.ref(fetcher))
                watching[:] = [Fetches(seeded, dataset=fetcher.dataset, collate_fn=fetcher.collate_fn)]
            watching[0].begins()
        except Exception:  # whatever a data set's attributes are
            return fetch(fetcher, index)
        batch = fetch(fetcher, index)
        try:
            if watching[0].ends():
                place = slot_of(len(fetchers) - 1, worker.id)
                text = json.dumps(watching[0].seen).encode()
                notes[place : place + len(text)] = text[:SLOT]
        except Exception:
            watching[0].seen = [{}] * FETCHES
        return batch

    return fetch_and_look


def slot_of(epoch: int, worker: int) -> int:
    """Where a worker writes in an epoch, counted from the one in which it was forked."""
    return (epoch * WORKERS + worker) * SLOT


def read(notes: mmap.mmap | None, epoch: int) -> dict[int, list[Fetch]]:
    """What each worker wrote."""
    found = {}
    if notes is None or epoch >= EPOCHS:
        return found
    for worker in range(WORKERS):
        place = slot_of(epoch, worker)
        text = notes[place : place + SLOT].rstrip(b"\0")
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
    """The generators from which two epochs draw the same numbers. Of one that each fetch seeds, by the example
    perhaps, that is not known."""
    found = [{place for fetches in epoch.values() for place in places_of(fetches)} for epoch in epochs]
    return {name for one, other in itertools.combinations(found, 2) for name, *_ in one & other}


def places_of(fetches: list[Fetch]) -> Iterator[tuple]:
    """Where a process draws from: the state in which a fetch begins that only draws, and the one in which all fetches
    end, if each of them seeds the generator with the same number."""
    for number, fetch in enumerate(fetches):
        yield from ((name, number, before) for name, (before, _, only) in fetch.items() if only)
    for name in set.intersection(*map(set, fetches)) if len(fetches) > 1 else ():
        ends = {(end, only) for _, end, only in (fetch[name] for fetch in fetches)}
        if len(ends) == 1 and not next(iter(ends))[1]:
            yield name, "each", next(iter(ends))[0]


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
        raise Unheard("no random number was drawn while batches were fetched, from a generator that is looked at")
    within = {"workers": {name for rank in ranks for name in same_in_workers(rank["epochs"][0])},
              "again": {name for rank in ranks for name in same_in_epochs(rank["epochs"])}}  # fmt: skip
    anew = {name for rank in ranks for name in seeded_anew(rank["epochs"]) if len(rank["epochs"]) > 1}
    if anew and len(set(streams["streams"])) == len(ranks) and not any(within.values()):
        names = ", ".join(sorted(anew))
        raise Unheard(f"{names}: seeded while batches are fetched, so whether epochs repeat themselves is not known")
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
        self.seeded: dict[str, str] = {}
        self.notes: dict[Epoch, mmap.mmap] = {}
        self.spawned: dict[Epoch, int | None] = {}
        self.walks = weakref.WeakKeyDictionary()  # iterator -> the epochs that it walked
        self.number: dict[Epoch, int] = {}  # which of its iterator's epochs it is
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
                self.notes[epoch] = here.notes = mmap.mmap(-1, slot_of(EPOCHS, 0))  # shared with what is forked

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
            walks = self.walks.setdefault(iterator, [])
            self.number[epoch] = len(walks)
            walks.append(epoch)
            self.notes[epoch] = self.notes.get(walks[0])  # where its workers write
        if iterator._dataset_kind == _DatasetKind.Iterable:
            self.streams.add(epoch)
        if not iterator._num_workers:
            if epoch not in self.here:
                self.here[epoch] = Fetches(self.seeded, dataset=data, collate_fn=iterator._collate_fn)
            self.here[epoch].begins()
        elif (iterator._workers[0]._start_method or get_start_method()) != "fork" and iterator not in self.iterators:
            self.iterators.add(iterator)  # workers that stay draw on
            holds = any(held(dataset=data, collate_fn=iterator._collate_fn))
            own = iterator._worker_init_fn is not None or holds
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
            {"here": self.here[epoch].seen} if epoch in self.here else read(self.notes[epoch], self.number[epoch])
            for epoch in same
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
        self.states, self.since = None, 0.0  # at the beginning of this stretch
        self.fetcher = None  # the thread that fetches
        self.apart, self.stepped = False, set()

    def begins(self) -> None:
        """A stretch begins."""
        self.states, self.since = global_states(on_gpu=True) if self.open else None, time.thread_time()

    def ends(self) -> None:
        """A stretch has ended: what did it draw?"""
        if self.states is None:
            return
        seconds = time.thread_time() - self.since
        drawn, self.states = used(self.states, global_states(on_gpu=True), seconds), None
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
