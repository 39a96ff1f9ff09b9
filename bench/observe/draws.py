"""What a torch DataLoader draws: the indices of its sampler, and the random numbers of its augmentation."""

import functools
import random
import warnings
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler

from bench.observe.coverage import MOST_DRAWS, MOST_EPOCHS, coverage
from bench.observe.probe import Probe
from bench.observe.weights import hash_of

REPEATS = 8  # times that one example is drawn, to see whether it comes out otherwise, and how
FIRST = range(8)  # examples by whose labels a data set is told from another
WITHIN_S = 30  # for these draws


class Recorded:
    """Stands in for a loader's sampler or batch sampler: the same indices in the same order, and remembers them.

    epochs: for each time it was walked, the first MOST_EPOCHS, one array of indices per step.
    """

    def __init__(self, sampler, ranks: int):
        self.sampler, self.most, self.epochs = sampler, MOST_DRAWS // ranks, []
        self.draws = 0

    def __iter__(self) -> Iterator:
        drawn = []
        self.epochs.append(drawn)
        for indices in self.sampler:
            if len(self.epochs) <= MOST_EPOCHS and self.draws < self.most:
                drawn.append(np.atleast_1d(np.asarray(indices)))
                self.draws += len(drawn[-1])
            yield indices

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str):
        if name == "sampler":  # not there yet: while it is copied
            raise AttributeError(name)
        return getattr(self.sampler, name)  # set_epoch, batch_size, …


class LoaderWatch:
    """One loader whose indices are recorded from now on; ``close`` gives it its sampler back."""

    def __init__(self, loader: DataLoader, ranks: int):
        self.loader, self.taken = loader, []
        self.place = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self.recorded = Recorded(getattr(loader, self.place), ranks)
        self.subset, self.of = subset_of(loader)
        vars(loader)[self.place] = self.recorded  # as a DataLoader forbids it by assignment

    def epoch_ended(self, batches: int, whole: bool) -> None:
        """An epoch of so many batches was taken; whole: to its end. Workers may have drawn further."""
        self.taken.append((batches, whole))

    def close(self) -> None:
        """The loader is what it was."""
        vars(self.loader)[self.place] = self.recorded.sampler

    def result(self, labels: str | None) -> dict | None:
        """A part for ``observe.data_of``; None for a sampler that draws with replacement, or not by number."""
        if getattr(self.loader.sampler, "replacement", False):
            return None
        steps, epochs = [], []
        for drawn, (batches, whole) in zip(self.recorded.epochs[:MOST_EPOCHS], self.taken, strict=False):
            seen = drawn[:batches]
            if whole and len(seen) == batches:
                epochs.append((len(steps), len(steps) + batches))
            steps += seen
        if not steps or not all(np.issubdtype(step.dtype, np.integer) for step in steps):
            return None
        if isinstance(self.loader.sampler, SubsetRandomSampler):  # it draws numbers of the whole: make them places
            places = np.zeros(self.of, np.int64)
            places[self.subset] = np.arange(len(self.subset))
            steps = [places[step] for step in steps]
        images = self.of if self.subset is None else len(self.subset)
        kind = labels if self.subset is None else None
        return {
            "steps": steps,
            "num_images": images,
            "epochs": epochs,
            "subset": self.subset,
            "of": self.of,
            "kind": kind,
        }


def subset_of(loader: DataLoader) -> tuple[np.ndarray | None, int]:
    """Which images of how many the loader is meant to draw; None: all."""
    if isinstance(loader.sampler, SubsetRandomSampler):
        return np.asarray(loader.sampler.indices), len(loader.dataset)
    if isinstance(loader.dataset, Subset):
        return np.asarray(loader.dataset.indices), len(loader.dataset.dataset)
    return None, len(loader.dataset)


def can_be_recorded(loader) -> bool:
    """Whether it is a DataLoader that draws examples by number from a data set of known length."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and hasattr(loader.dataset, "__getitem__")
        and hasattr(loader.dataset, "__len__")
    )


# --- augmentation -------------------------------------------------------------------------------------------------


def augmentation(loader: DataLoader) -> tuple[str | None, str | None]:
    """A hash of the random choices that the loader's next examples get, and one of its data set's first labels.

    One example is drawn REPEATS times in a process of its own, which starts from the random numbers that the loader
    would go on with: those of its first worker, or of this process where it has no workers. Nothing of this process is
    used up. The first is None where the example always comes out the same, and both are where it cannot be drawn so.
    """
    generator = torch.Generator()
    generator.set_state(loader.generator.get_state() if loader.generator else torch.get_rng_state())
    begin = loader.worker_init_fn if loader.num_workers else functools.partial(go_on, random_state())
    drawn = functools.partial(
        DataLoader, loader.dataset, batch_size=None, num_workers=1, worker_init_fn=begin, generator=generator,
        timeout=WITHIN_S, multiprocessing_context=loader.multiprocessing_context,
    )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            examples = list(drawn(sampler=[0] * REPEATS + [i for i in FIRST if i < len(loader.dataset)]))
        hashes = [hash_of(pieces(example)) for example in examples[:REPEATS]]
        labels = hash_of(piece for example in examples[REPEATS:] for piece in pieces(example, labels=True))
    except Exception:  # whatever a data set raises that is not drawn by one number
        return None, None
    return (hash_of(name.encode() for name in hashes) if len(set(hashes)) > 1 else None), labels


def random_state() -> tuple:
    """The random numbers of this process: Python's, NumPy's and torch's."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def go_on(state: tuple, worker: int) -> None:
    """In a worker: go on from another process's random numbers."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def pieces(example, labels: bool = False) -> Iterator[bytes]:
    """The bytes of all that an example holds; labels: of its whole numbers alone."""
    if isinstance(example, dict):
        example = list(example.values())
    if isinstance(example, list | tuple):
        for item in example:
            yield from pieces(item, labels)
    elif not labels or is_label(example):
        has_bytes = hasattr(example, "__array__") or hasattr(example, "__array_interface__")
        yield np.asarray(example).tobytes() if has_bytes else repr(example).encode()


def is_label(item) -> bool:
    """Whether it is one whole number."""
    if isinstance(item, torch.Tensor):
        return item.dim() == 0 and not item.is_floating_point()
    return isinstance(item, int | np.integer)


# --- the probes of a Watch ----------------------------------------------------------------------------------------


def data_of(parts: list[dict]) -> dict | None:
    """What the ranks drew. A part: steps (arrays of indices), num_images, epochs, and from a Watch two more.

    subset: [num_images], which images of another set of ``of`` images this rank's data set is made of. Where the ranks
    have different ones, their indices count in that other set. kind: of the data set's first examples. Where it
    differs the ranks read sets of their own, and the same index is not the same image: nothing is known then.
    """
    ranks, num_images = [part["steps"] for part in parts], parts[0]["num_images"]
    if len({part.get("kind") for part in parts}) > 1:
        return None
    subsets = [part.get("subset") for part in parts]
    if any(subset is not None for subset in subsets) and not all(np.array_equal(s, subsets[0]) for s in subsets):
        if any(subset is None for subset in subsets):
            return None
        ranks = [[subset[step] for step in steps] for subset, steps in zip(subsets, ranks, strict=True)]
        num_images = parts[0]["of"]
    return coverage(ranks, num_images, parts[0]["epochs"])


class Draws(Probe):
    """The images that the first loader draws."""

    joins: ClassVar = {"data": data_of}
    loader = None

    def begin(self, loader) -> None:
        if can_be_recorded(loader):
            self.loader = LoaderWatch(loader, self.watch.ranks)

    def epoch_ended(self, loader, batches: int, whole: bool) -> None:
        if self.loader and self.loader.loader is loader:
            self.loader.epoch_ended(batches, whole)

    def close(self) -> None:
        if self.loader:
            self.loader.close()

    def part(self) -> dict:
        return {"data": self.loader and self.loader.result(self.watch.probe(Augmentation).labels)}


class Augmentation(Probe):
    """The random numbers that the first loader's augmentation draws from."""

    joins: ClassVar = {"augmentation": lambda streams: {"streams": streams}}
    stream = labels = None

    def begin(self, loader) -> None:
        if can_be_recorded(loader):
            self.stream, self.labels = augmentation(loader)

    def part(self) -> dict:
        return {"augmentation": self.stream}
