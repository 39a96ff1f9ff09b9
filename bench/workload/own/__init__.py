"""The user's data: DATA=FILE.py:FUNCTION, whose function returns a training and a validation set.

Each is map-style (a length, and ``dataset[i]``) or iterable, with examples (input, target): tensors, numbers, arrays,
or tuples and dicts of them; others need a function ``collate`` in the file. An iterable is read into memory once, so
that it can be partitioned and shuffled."""

import hashlib
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from bench.config.modes import MODES
from bench.errors import UserError
from bench.structure import each, leaves, tensors
from bench.workload import base, batch, own_code
from bench.workload.loader import training_set

MOST_READ = 2**20  # examples of an iterable
PLANNED = 64  # examples; the largest represents all in a prediction of memory
NAMES = ("training set", "validation set")
WAY_OUT = ("give tensors, arrays or numbers of one size for all examples, or write a function collate(examples) beside "
           "the one that DATA names")  # fmt: skip


class Workload(base.Workload):
    """Cross-entropy for classes, the mean square error for numbers."""

    def load(self, mode, say: Callable[[str], None]) -> tuple:
        text = f"DATA={self.config.data}"
        seed_everything(self.config.seed)
        found = own_code.call("DATA", self.config.data)
        collate = getattr(own_code.loaded("DATA", self.config.data), "collate", None)
        if not isinstance(found, tuple | list) or len(found) not in (2, 3):
            raise UserError(f"{text} returned a {type(found).__name__}: return (training set, validation set or None), "
                            "and the number of outputs as a third element if it cannot be inferred")  # fmt: skip
        devices = self.config.num_devices if MODES[self.config.mode].one_process else 1  # of one process
        sizes = self.config.per_device_batch * devices, None
        sets = [None if one is None else Examples(one, f"{text}: the {name}", say, collate, size)
                for one, name, size in zip(found, NAMES, sizes, strict=False)]  # fmt: skip
        train_set, val_set = sets
        if train_set is None:
            raise UserError(f"{text} returned no training set")
        require_same(mode, text, sets)
        if val_set is None and (self.config.evaluate or self.config.target or self.config.replicas):
            raise UserError(f"{text} returned no validation set: leave EVALUATE, TARGET and REPLICAS out")
        trained_on = training_set(self.config, train_set, "examples")
        inputs, targets = map(batch.opened, train_set[np.arange(1)][:2])
        self.example = each(torch.zeros_like, inputs)
        self.num_outputs = found[2] if len(found) == 3 else outputs_of(train_set.dataset, targets, text)
        if not isinstance(self.num_outputs, int) or self.num_outputs < 1:
            raise UserError(f"{text}: {self.num_outputs!r} is not a number of outputs: give an integer of at least 1")
        return trained_on, val_set

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        require_tensors("loss", outputs, targets)
        function = nn.functional.cross_entropy if are_classes(targets) else nn.functional.mse_loss
        return function(outputs, targets)

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[b]. Classes: 1 where the largest output is the target's, else 0. Numbers: minus the square error."""
        require_tensors("score", outputs, targets)
        if are_classes(targets):
            return (outputs.argmax(1) == targets).float()
        return -(outputs - targets).square().flatten(1).mean(1)

    def count(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        number, targets = batch.length(targets), batch.opened(targets)
        scores = self.score(outputs, targets)
        if not isinstance(scores, torch.Tensor) or scores.shape != (number,):
            raise UserError(f"score(outputs, targets) returned {own_code.shape_of(scores)}: expected one number "
                            f"for each of {number} examples")  # fmt: skip
        loss = self.loss(outputs, targets).mean()  # of nn.DataParallel's replicas, if the model computes it
        return torch.stack([loss * number, scores.sum()])

    def blank(self) -> torch.Tensor:
        return self.example

    def planned(self, examples: int) -> tuple:
        """The largest of the first examples, repeated."""
        train_set, _ = self.load(OneProcess(), lambda sentence: None)
        first = [train_set.batch([index]) for index in range(min(PLANNED, len(train_set)))]
        sizes = [sum(tensor.nbytes for tensor in tensors(example)) for example in first]
        largest = sizes.index(max(sizes))
        if train_set.collate:
            found = train_set.batch([largest] * examples, examples // self.config.accumulate)
            return each(lambda tensor: torch.empty_like(tensor, device="meta"), found)
        return each(lambda tensor: tensor.new_empty((examples, *tensor.shape[1:]), device="meta"), first[largest])


class OneProcess:
    """The part of a single process's mode that ``load`` needs."""

    def gather(self, item):
        return [item]


class Examples:
    """The user's data set for the loaders. collate: the user's. size: examples of one forward pass, which ``collate``
    gets in one call; None: all."""

    def __init__(
        self, dataset, name: str, say: Callable[[str], None] = print, collate: Callable | None = None,
        size: int | None = None,
    ):  # fmt: skip
        self.name, self.collate, self.size = name, collate, size
        by_index = all(hasattr(dataset, each) for each in ("__len__", "__getitem__"))
        if isinstance(dataset, IterableDataset) or not by_index:
            if not hasattr(dataset, "__iter__"):
                raise UserError(f"{name} is a {type(dataset).__name__}: it supports neither len() and dataset[i] "
                                "nor iteration")  # fmt: skip
            dataset = self.read_all(dataset, say)
        self.dataset = dataset
        with own_code.users_code(name):
            if not len(dataset):
                raise UserError(f"{name} is empty")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, draws: np.ndarray) -> tuple:
        """[B] draws -> inputs, targets: structures of tensors [B, …], or the result of ``collate``; float64 becomes
        float32. Raises UserError for an example that is not a pair, examples that do not form a batch, and errors in
        the user's code."""
        return *self.batch((draws % len(self)).tolist(), self.size), []

    def batch(self, indices: list[int], size: int | None = None) -> tuple:
        with own_code.users_code(self.name):
            if isinstance(self.dataset, TensorDataset) and not self.collate:
                found = self.dataset[torch.tensor(indices, dtype=torch.long)]
            else:
                several = getattr(self.dataset, "__getitems__", None)
                found = several(indices) if several else [self.dataset[index] for index in indices]
                found = self.collated(found, size or len(indices)) if self.collate else self.stacked(found)
        return each(in_float32, self.pair(found))

    def stacked(self, examples: list) -> tuple:
        examples = [self.pair(example) for example in examples]
        try:
            found = tuples_of(default_collate(examples))
        except (TypeError, RuntimeError, KeyError) as error:
            why = " ".join(str(error).split())
            raise UserError(f"{self.name}: {type(error).__name__}: {why}: {WAY_OUT}") from None
        for leaf in leaves(found, lambda item: isinstance(item, str | bytes)):
            raise UserError(f"{self.name}: an example contains a {type(leaf).__name__}: {WAY_OUT}")
        return found

    def collated(self, examples: list, size: int) -> tuple:
        parts = [self.collate(examples[at : at + size]) for at in range(0, len(examples), size)]
        for part in parts:
            if not isinstance(part, tuple | list) or len(part) != 2:
                raise UserError(f"{self.name}: collate returned {own_code.shape_of(part)}: return (inputs, targets) of "
                                "the examples that it gets")  # fmt: skip
        return tuple(batch.Collated(list(item), min(size, len(examples))) for item in zip(*parts, strict=True))

    def pair(self, example) -> tuple:
        if not isinstance(example, tuple | list) or len(example) != 2:
            size = f" of {len(example)}" if isinstance(example, tuple | list) else ""
            raise UserError(f"{self.name}: an example is a {type(example).__name__}{size}: expected (input, target), "
                            "each may be a tuple or a dict; for another form write a function collate(examples) "
                            "in the same file")  # fmt: skip
        return tuple(example)

    def read_all(self, dataset, say: Callable[[str], None]) -> list:
        found = []
        with own_code.users_code(self.name):
            for example in dataset:
                found.append(example if self.collate else self.pair(example))
                if len(found) % 10_000 == 0:
                    say(f"{self.name}: {len(found)} examples read")
                if len(found) > MOST_READ:
                    raise UserError(f"{self.name} has more than {MOST_READ} examples to iterate over: implement len() "
                                    "and dataset[i]")  # fmt: skip
        return found


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def tuples_of(item):
    """Turn every list into a tuple: ``default_collate`` makes lists of tuples."""
    if isinstance(item, dict):
        item.update({key: tuples_of(part) for key, part in item.items()})
        return item
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(tuples_of, item))
    return tuple(map(tuples_of, item)) if isinstance(item, tuple | list) else item


def require_tensors(function: str, outputs, targets) -> None:
    for name, item in (("outputs", outputs), ("targets", targets)):
        if not isinstance(item, torch.Tensor):
            raise UserError(f"the {name} are {own_code.shape_of(item)}, not one tensor: write a function "
                            f"{function}(outputs, targets)")  # fmt: skip


def are_classes(targets) -> bool:
    """Whether targets are one integer for each example."""
    return isinstance(targets, torch.Tensor) and targets.dim() == 1 and not targets.is_floating_point()


def outputs_of(dataset, targets, text: str) -> int:
    """The number of outputs: from the training set, or the size of a target. Raises UserError."""
    for name in ("num_outputs", "num_classes", "classes"):
        value = getattr(dataset, name, None)
        if value is not None:
            return len(value) if name == "classes" else int(value)
    if isinstance(targets, torch.Tensor) and targets.is_floating_point():
        return targets.shape[-1] if targets.dim() > 1 else 1
    raise UserError(f"{text} does not give the number of outputs: return it as a third element, (training set, "
                    "validation set, number of classes)")  # fmt: skip


def require_same(mode, text: str, sets: list) -> None:
    """Raise UserError if the ranks have different sets."""
    ranks = mode.gather([None if each is None else (len(each), hash_of_ends(each)) for each in sets])
    for rank, theirs in enumerate(ranks):
        for name, mine, other in zip(NAMES, ranks[0], theirs, strict=True):
            lengths = [0 if each is None else each[0] for each in (mine, other)]
            if lengths[0] != lengths[1]:
                raise UserError(f"{text}: the {name} has {lengths[0]} examples on rank 0 and {lengths[1]} on rank "
                                f"{rank}: return the whole set on every rank; it is sharded automatically")  # fmt: skip
            if mine != other:
                raise UserError(f"{text}: the {name} has different examples on rank 0 and rank {rank}: do not use "
                                "the time, the rank or a system seed to create it")  # fmt: skip


def hash_of_ends(examples: Examples) -> str:
    """SHA-256 of the first and the last example, whose random choices get the same seed on all ranks."""
    seed_everything(0)
    inputs, targets, _ = examples[np.array([0, len(examples) - 1])]
    parts = tensors((inputs, targets))
    raw = (t.cpu().contiguous().flatten().view(torch.uint8) for t in parts)  # NumPy does not have all of torch's types
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in raw)).hexdigest()


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
