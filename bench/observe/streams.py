"""Random numbers: which generators are used while a batch is fetched or a step is trained, and whether those of two
ranks are in the same state.

Only the states before and after are compared; numbers are drawn only from copies.
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

from bench.observe.probe import NotObserved, Probe
from bench.observe.view import Epoch, chosen

EPOCHS = 6  # observed ones: validations may come first
FETCHES = 2  # fetches of each loading process, and steps, whose random states are observed
HELD = 300  # objects of a data set that are searched for generators
DEPTH = 5
SLOT = 4096  # bytes for a worker's observations
WORKERS = 64
NUMBERS_PER_S = 500_000_000  # a thread's maximum rate of draws
MOST_NUMBERS = 1 << 25  # drawn from a copy

Fetch = dict[str, tuple[str, str, bool]]  # generator -> state before and after, and whether it was only drawn from
GENERATORS = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)
OF_PROCESS = {"torch": torch.default_generator, "random": random._inst, "numpy": np.random.mtrand._rand}


def digest(value) -> str:
    return hashlib.blake2b(value if isinstance(value, bytes) else repr(value).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class State:
    """A generator's state. whole: its hash. seed: the part that draws do not change, if there is one. bits: otherwise
    the state of NumPy's bit generator that draws the same numbers. A Mersenne Twister replaces all its words with
    every 624th number, and with the first one after a seed. fresh: no number has been drawn since it was seeded, as
    far as the state shows."""

    whole: str
    seed: str = ""
    bits: dict | None = None
    fresh: bool = False

    def reaches(self, later: "State", seconds: float) -> bool:
        if self.bits is None or later.bits is None:
            return self.seed == later.seed and not later.fresh
        return draws_on(self.bits, later.bits, min(MOST_NUMBERS, 10_000 + int(seconds * NUMBERS_PER_S)))


def draws_on(before: dict, after: dict, most: int) -> bool:
    """Whether a bit generator of NumPy reaches another state by drawing; tried on a copy."""
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
    """The seed comes first, on a CPU and on a GPU, then the position. state: [bytes] uint8."""
    raw = state.numpy().tobytes()
    return State(digest(raw), digest(raw[:8]), fresh=not any(raw[16:24] or raw[8:16]))


def state_of(generator) -> State:
    if isinstance(generator, torch.Generator):
        return state_of_torch(generator.get_state())
    if isinstance(generator, random.Random):  # 624 words, and the position in them
        _, (*words, place), gauss = generator.getstate()
        twister = {"key": np.array(words, np.uint32), "pos": place}
        bits = {"bit_generator": "MT19937", "state": twister, "gauss": gauss}
    elif isinstance(generator, np.random.RandomState):
        bits = generator.get_state(legacy=False)
    else:
        bits = generator.bit_generator.state
    return State(digest(with_bytes(bits)), bits=bits, fresh=bits["state"].get("pos") == 624)


def with_bytes(value):
    if isinstance(value, dict):
        return {name: with_bytes(part) for name, part in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


def global_states(on_gpu: bool = False) -> dict[str, State]:
    states = {name: state_of(generator) for name, generator in OF_PROCESS.items()}
    if on_gpu and torch.cuda.is_initialized():
        states["torch.cuda"] = state_of_torch(torch.cuda.get_rng_state())
    return states


# --- generators that a data set holds -----------------------------------------------------------------------------


def held(**roots) -> Iterator[tuple[str, object]]:
    """Generators in the attributes of a data set, its transforms and their parts, and those in their classes and
    modules."""
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
    """The parts of an object that may hold a generator."""
    if isinstance(item, torch.Tensor | np.ndarray | type | types.ModuleType):
        return []
    if isinstance(item, dict):
        pairs = [(f"[{key!r}]", value) for key, value in itertools.islice(item.items(), 50)]
    elif isinstance(item, list | tuple):
        pairs = [(f"[{place}]", value) for place, value in enumerate(item[:50])]
    else:
        pairs = [(f".{key}", value) for key, value in list(getattr(item, "__dict__", {}).items())]
        pairs += [(f".{key}", getattr(item, key)) for key in UNLISTED.get(type(item), ())]
        if isinstance(item, types.FunctionType):  # its closure
            cells = zip(item.__code__.co_freevars, item.__closure__ or (), strict=False)
            pairs += [(f".{key}", cell.cell_contents) for key, cell in cells if cell != types.CellType()]
    plain = (str, bytes, int, float, bool, type(None))
    return [(at, value) for at, value in pairs if not isinstance(value, plain)]


UNLISTED = {functools.partial: ("func", "args", "keywords"), types.MethodType: ("__self__",)}  # not in __dict__


def generators_around(item, looked_at: set) -> Iterator[tuple[str, object]]:
    """The generators in an object's classes and module, except those of the process."""
    module = sys.modules.get(getattr(item, "__module__", None))
    for space in (module, *type(item).__mro__):
        if isinstance(space, type | types.ModuleType) and id(space) not in looked_at:
            looked_at.add(id(space))
            for name, part in list(vars(space).items()):
                if issubclass(type(part), GENERATORS) and not any(part is each for each in OF_PROCESS.values()):
                    yield f"{space.__name__}.{name}", part


# --- fetches ------------------------------------------------------------------------------------------------------

MADE = State("", "made")  # of a generator that is not there yet


class Fetches:
    """The random states of a process before and after it fetches its first FETCHES batches. seeded: the states of the
    generators that fetches of this process have seeded, shared by all its Fetches; roots: objects that may hold
    generators, by name."""

    def __init__(self, seeded: dict[str, str], **roots):
        self.seeded, self.roots = seeded, roots
        self.begun, self.since, self.seen = None, 0.0, []

    def states(self) -> dict[str, State]:
        return global_states() | {name: state_of(generator) for name, generator in held(**self.roots)}

    def begins(self) -> None:
        if len(self.seen) < FETCHES:
            self.begun, self.since = self.states(), time.thread_time()

    def ends(self) -> bool:
        """The batch has arrived; returns whether its states were observed. A generator that is again in the state to
        which a fetch seeded it was seeded with the same number."""
        if not self.begun:
            return False
        seconds, now = time.thread_time() - self.since, self.states()
        fetch = used(dict.fromkeys(now, MADE) | self.begun, now, seconds)
        again = [name for name, state in self.seeded.items() if name in now and now[name].whole == state]
        fetch = {name: seen for name, seen in fetch.items() if seen[2] or not now[name].fresh}
        self.seen.append({name: (self.seeded[name], self.seeded[name], False) for name in again} | fetch)
        self.seeded.update({name: after for name, (_, after, only) in fetch.items() if not only})
        self.begun = None
        return True


def used(before: dict[str, State], after: dict[str, State], seconds: float = 1.0) -> Fetch:
    """The generators whose state has changed, after this time."""
    return {name: (before[name].whole, now.whole, before[name].reaches(now, seconds))
            for name, now in after.items() if name in before and before[name].whole != now.whole}  # fmt: skip


here = threading.local()  # .notes: the memory for a worker that this thread forks now
hooked = []  # a fork hook stays for the life of this process, so it is installed once


def in_child() -> None:
    """In a forked process: if it is a loader's worker, observe its first fetches."""
    notes = getattr(here, "notes", None)
    if notes is None:
        return
    here.notes = None
    from torch.utils.data._utils import fetch

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = seen_in_worker(kind.fetch, notes)


def seen_in_worker(fetch: Callable, notes: mmap.mmap) -> Callable:
    """A fetcher's ``fetch`` that records the random states of its first calls; a new epoch has a new fetcher."""
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
        except Exception:  # a data set's attributes can be any objects
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
    """The offset at which a worker writes in an epoch, counted from the one in which it was forked."""
    return (epoch * WORKERS + worker) * SLOT


def read(notes: mmap.mmap | None, epoch: int) -> dict[int, list[Fetch]]:
    found = {}
    for worker in range(WORKERS) if notes is not None and epoch < EPOCHS else ():
        place = slot_of(epoch, worker)
        try:
            found[worker] = json.loads(notes[place : place + SLOT].rstrip(b"\0"))
        except ValueError:  # empty, half-written, or too long
            continue
    return found


# --- the ranks' streams compared ----------------------------------------------------------------------------------


def same_stream(one: list[Fetch], other: list[Fetch]) -> list[str]:
    """The generators from which two processes draw the same numbers.

    They do if both start a fetch from the same state and only draw from there. If each fetch seeds the generator, e.g.
    by the example, they do if all fetches begin in equal states, or all end in equal states.
    """
    names = [name for name in (one[0] if one and other else {}) if name in other[0]]
    pairs = {name: [[f[name] for f in fetches if name in f] for fetches in (one, other)] for name in names}
    return [name for name in names if from_same_stream(*pairs[name])]


def from_same_stream(one: list, other: list) -> bool:
    """Whether two processes' states of one generator come from the same stream."""
    if one[0][2] and other[0][2]:
        return one[0][0] == other[0][0]
    pairs = list(zip(one, other, strict=False))
    return len(pairs) > 1 and any(all(a[when] == b[when] for a, b in pairs) for when in (0, 1))


def same_in_epochs(epochs: list[dict[str | int, list[Fetch]]]) -> set[str]:
    """The generators from which two epochs draw the same numbers; unknown for one that each fetch seeds."""
    found = [{place for fetches in epoch.values() for place in places_of(fetches)} for epoch in epochs]
    return {name for one, other in itertools.combinations(found, 2) for name, *_ in one & other}


def places_of(fetches: list[Fetch]) -> Iterator[tuple]:
    """The states from which a process draws: the first state of a fetch that only draws, and the common last state of
    all fetches if each of them seeds the generator with the same number."""
    for number, fetch in enumerate(fetches):
        yield from ((name, number, before) for name, (before, _, only) in fetch.items() if only)
    for name in set.intersection(*map(set, fetches)) if len(fetches) > 1 else ():
        ends = {(end, only) for _, end, only in (fetch[name] for fetch in fetches)}
        if len(ends) == 1 and not next(iter(ends))[1]:
            yield name, "each", next(iter(ends))[0]


def streams_of(ranks: list[dict]) -> dict | None:
    """A name for each rank's stream, equal if two share one; None if none drew. A part: process -> its fetches."""
    names, shared = list(range(len(ranks))), set()
    for rank, processes in enumerate(ranks):
        for before in range(rank):
            pairs = itertools.product(processes.values(), ranks[before].values())
            if found := {name for one, other in pairs for name in same_stream(one, other)}:
                names[rank], shared = names[before], shared | found
                break
    drew = any(fetch for processes in ranks for fetches in processes.values() for fetch in fetches)
    return {"streams": [str(name) for name in names], "generators": sorted(shared)} if drew else None


def augmentation_of(ranks: list[dict]) -> dict:
    """The random streams with which the ranks' examples are augmented.

    A part has "epochs", the processes of each with their fetches, and whether they are "of_a_stream", which may shuffle
    itself; or, for spawned workers, which cannot be observed, "spawned": their first seed, None if a function of the
    script seeds them or the data set holds a generator, of which each worker has a copy; and "later" epochs' seeds.
    """
    if any("spawned" in rank for rank in ranks):
        seeds = [rank.get("spawned") for rank in ranks]
        every = seeds + [seed for rank in ranks for seed in rank.get("later", [])]
        if None not in every and len(set(every)) == len(every):
            return {"streams": [str(seed) for seed in seeds], "generators": []}
        among = "ranks" if len(set(seeds)) < len(seeds) else "epochs"
        why = "" if None in every else f", but those of several {among} start from one seed"
        raise NotObserved(f"spawned workers cannot be observed{why}")
    if (streams := streams_of([rank["epochs"][0] for rank in ranks])) is None:
        raise NotObserved("no observed generator drew a random number while batches were fetched")
    workers = [pair for rank in ranks for pair in itertools.combinations(rank["epochs"][0].values(), 2)]
    within = {"workers": {name for one, other in workers for name in same_stream(one, other)},
              "again": {name for rank in ranks for name in same_in_epochs(rank["epochs"])}}  # fmt: skip
    processes = [fetches for rank in ranks if len(rank["epochs"]) > 1 for epoch in rank["epochs"]
                 for fetches in epoch.values()]  # fmt: skip
    seeded = {name for fetches in processes for fetch in fetches for name, (*_, only) in fetch.items() if not only}
    if seeded and len(set(streams["streams"])) == len(ranks) and not any(within.values()):
        names = ", ".join(sorted(seeded))
        raise NotObserved(f"{names}: seeded while batches are fetched, so it is unknown whether epochs repeat")
    streams |= {name: sorted(found) for name, found in within.items()}
    return streams | {"of_a_stream": any(rank["of_a_stream"] for rank in ranks)}


def random_of(ranks: list[dict]) -> dict:
    if (streams := streams_of(ranks)) is None:
        raise NotObserved("no random number was drawn in the first two steps")
    return streams


class Fetched:
    """The random numbers of one epoch. notes: the memory that its workers write to. number: of this epoch of its
    iterator. set: identifies its data set; None before an index was drawn. spawned: the seed of workers that cannot be
    observed, in a list; see ``augmentation_of``."""

    def __init__(self):
        self.notes, self.number, self.set, self.fetches = None, 0, None, None
        self.of_a_stream, self.spawned = False, []

    def processes(self) -> dict[str | int, list[Fetch]]:
        return {"here": self.fetches.seen} if self.fetches else read(self.notes, self.number)


class Augmentation(Probe):
    """The random numbers drawn while batches are fetched, in this process or by forked workers."""

    joins: ClassVar = {"augmentation": augmentation_of}
    silent: ClassVar = {"augmentation": "no batch of torch's DataLoader was observed"}

    def setup(self) -> None:
        self.epochs: dict[Epoch, Fetched] = {}
        self.seeded: dict[str, str] = {}
        self.walks = weakref.WeakKeyDictionary()  # iterator -> its epochs' Fetched
        self.iterators = weakref.WeakSet()  # with workers that cannot be observed
        if not hooked and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=in_child)
            hooked.append(in_child)

    def before_iter(self, epoch) -> None:
        if len(self.epochs) < EPOCHS:
            record = self.epochs[epoch] = Fetched()
            if getattr(epoch.loader, "num_workers", 1):
                record.notes = here.notes = mmap.mmap(-1, slot_of(EPOCHS, 0))  # shared with forked processes

    def fetch_begins(self, epoch) -> None:
        if epoch.taken == 0 and epoch in self.epochs:  # a custom loader may start its workers now
            here.notes = self.epochs[epoch].notes

    def drawn(self, epoch, iterator, indices) -> None:
        record = self.epochs.get(epoch)
        if record is None:
            return
        data, collate = iterator._dataset, iterator._collate_fn
        if record.set is None:
            record.set = type(data), length_of(data)
            walks = self.walks.setdefault(iterator, [])
            record.number = len(walks)
            walks.append(record)
            record.notes = walks[0].notes
        record.of_a_stream |= iterator._dataset_kind == _DatasetKind.Iterable
        if not iterator._num_workers:
            record.fetches = record.fetches or Fetches(self.seeded, dataset=data, collate_fn=collate)
            record.fetches.begins()
        elif (iterator._workers[0]._start_method or get_start_method()) != "fork" and iterator not in self.iterators:
            self.iterators.add(iterator)  # persistent workers continue their streams
            own = iterator._worker_init_fn is not None or any(held(dataset=data, collate_fn=collate))
            record.spawned = [None if own else iterator._base_seed]

    def fetched(self, epoch, batch) -> None:
        self.close()
        if epoch in self.epochs and self.epochs[epoch].fetches:
            self.epochs[epoch].fetches.ends()

    def after_iter(self, epoch, iterator) -> None:
        self.close()

    def epoch_ended(self, epoch) -> None:
        self.close()

    def close(self) -> None:
        """Processes forked from here on are not workers."""
        here.notes = None

    def part(self) -> dict:
        trained = [self.epochs[epoch] for epoch in chosen([epoch for epoch in self.epochs if epoch.taken])]
        trained = [record for record in trained if record.set is not None]
        same = [record for record in trained if record.set == trained[0].set]
        if seeds := [seed for record in same for seed in record.spawned]:
            return {"augmentation": {"spawned": seeds[0], "later": seeds[1:]}}
        seen = [record.processes() for record in same]
        seen = [processes for processes in seen if processes and all(processes.values())]
        return {"augmentation": {"epochs": seen, "of_a_stream": same[0].of_a_stream} if seen else None}


def length_of(data) -> int | None:
    try:
        return len(data)
    except Exception:  # a data set's length can fail in any way
        return None


class StepRandom(Probe):
    """The random numbers drawn from one optimizer step to the next: for dropout, or for noise.

    Draws while a loader begins or a batch is fetched belong to the augmentation and are left out: each of these ends a
    stretch of the open window, and another one follows. If another thread fetches, its draws are included.
    """

    joins: ClassVar = {"random": random_of}
    silent: ClassVar = {"random": "fewer than two steps of an epoch were observed"}

    def setup(self) -> None:
        self.seen: dict[Epoch, list[Fetch]] = {}  # the first windows of each epoch
        self.open: dict[Epoch, Fetch | None] = {}  # the window now; None: it opens with the next step
        self.states, self.since = None, 0.0  # at the beginning of this stretch
        self.fetcher = None  # the thread that fetches
        self.apart, self.stepped = False, set()

    def begins(self) -> None:
        self.states, self.since = global_states(on_gpu=True) if self.open else None, time.thread_time()

    def ends(self) -> None:
        """A stretch has ended: add its draws to each window."""
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

    asked = before_iter

    def after_iter(self, epoch, iterator=None) -> None:
        if not self.apart:
            self.begins()

    def fetched(self, epoch, batch) -> None:
        self.fetcher = threading.get_ident()
        if epoch.taken == 1 and len(self.seen) < EPOCHS:
            self.seen[epoch], self.open[epoch] = [], None if self.apart else {}
        self.after_iter(epoch)

    epoch_ended = after_iter  # its batches may all be fetched before the first step

    def after_step(self, optimizer) -> None:
        """Several optimizers that step in turn count as one step, which ends with the same optimizer as the last."""
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
            self.apart = True  # so the first one was not observed from its beginning
            self.open = dict.fromkeys(self.open)
        for epoch, window in list(self.open.items()):
            if window is not None:
                self.seen[epoch].append(window)
            self.open[epoch] = {}
            if len(self.seen[epoch]) == FETCHES:
                del self.open[epoch]

    def part(self) -> dict:
        trained = chosen([epoch for epoch, steps in self.seen.items() if len(steps) == FETCHES])
        if not trained:
            return {}
        steps = self.seen[trained[0]]
        always = set.intersection(*map(set, steps))  # occasional draws are a choice of the script
        if any(steps) and not always:
            raise NotObserved("random numbers were drawn in only one of the first two steps")
        return {"random": {"step": [{name: step[name] for name in always} for step in steps]}}
