"""The examples that a rank's loaders draw: the indices that torch's DataLoader gets from its sampler, and hashes of the
examples' bytes, which distinguish data sets and find examples that several ranks have.

The loader is not replaced: a listener is attached to the one method with which torch's iterators get the next indices.
"""

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch.utils.data import IterableDataset, RandomSampler, Subset, SubsetRandomSampler
from torch.utils.data import dataloader as torchs

from bench.observe.coverage import MOST_DRAWS, MOST_EPOCHS, NONE, Walk, base_indices, data_of, validations_of
from bench.observe.examples import length_of, numbers_of
from bench.observe.probe import Probe
from bench.observe.streams import digest
from bench.observe.view import Epoch, chosen

EPOCHS = 8  # recorded ones: validations may come first
HASHED_EPOCHS = 2
HASHED_BATCHES = 16
HASHED_EXAMPLES = 2048
SAMPLED = 2048  # numbers of an array with which data sets are compared


class Drawn:
    """The observations of one epoch.

    steps: [b] int64 of each batch, including prefetched ones. examples, labels: [b] int64 of the first batches. wrong:
    why its indices cannot be used. ordered: the batches come in the order of the draws. begun, exhausted: torch's
    iterator began and ended in it, and no other did.
    """

    def __init__(self, epoch: Epoch):
        self.epoch, self.steps, self.examples, self.labels = epoch, [], [], []
        self.iterator = self.wrong = self.set = self.sampler = None
        self.hashed, self.ordered, self.begun, self.exhausted = 0, True, False, False

    def walk(self) -> Walk:
        taken = self.epoch.taken
        return self.steps[:taken], self.begun and self.exhausted and len(self.steps) == taken

    def labelled(self) -> dict[str, np.ndarray]:
        """The first examples: index, and a hash of all bytes and one of the labels; 0 if it has none."""
        found = {"index": [NONE], "bytes": [NONE], "labels": [NONE]}
        for step, examples, labels in zip(self.steps, self.examples, self.labels, strict=False):
            if self.ordered and examples is not None and len(examples) == len(step):
                found["index"].append(step)
                found["bytes"].append(examples)
                found["labels"].append(np.zeros_like(examples) if labels is None else labels)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def kind_of_data(self) -> tuple:
        return self.set and self.set["sizes"], bool(self.wrong)


class Draws(Probe):
    joins: ClassVar = {"data": data_of, "validations": validations_of}
    silent: ClassVar = {
        "data": "no epoch was observed",
        "validations": "no epoch without training was observed to its end",
    }

    def setup(self) -> None:
        self.records: dict[Epoch, Drawn] = {}
        self.owners = weakref.WeakKeyDictionary()  # torch's iterator -> the epoch that it serves
        self.here = threading.local()  # .epoch: whose iterator this thread creates or advances now
        self.draws, self.ranks = 0, 1
        self.fresh = False

    # --- torch's iterators ----------------------------------------------------------------------------------------

    def begin(self, loader) -> None:
        self.ranks = self.watch.world.count
        self.listen(torchs._BaseDataLoaderIter, "_next_index", self.before_next_index, self.ended)

    def before_next_index(self, arguments: tuple, options: dict) -> Callable:
        return self.guarded(functools.partial(self.note_draw, arguments[0]))

    def note_draw(self, iterator, indices) -> None:
        epoch = getattr(self.here, "epoch", None) or self.owners.get(iterator)
        if epoch is None:
            return
        self.fresh = iterator not in self.owners or getattr(self.here, "making", False)
        self.owners[iterator] = epoch
        self.watch.notify("drawn", epoch, iterator, indices)

    def ended(self, error: BaseException, arguments: tuple) -> None:
        record = self.records.get(self.owners.get(arguments[0]))
        if record and isinstance(error, StopIteration):
            record.exhausted = True

    def close(self) -> None:
        super().close()
        self.here.epoch = None

    # --- what happens ---------------------------------------------------------------------------------------------

    def before_iter(self, epoch) -> None:
        if len(self.records) < EPOCHS:
            self.records[epoch] = Drawn(epoch)
        self.here.epoch, self.here.making = epoch, True

    def after_iter(self, epoch, iterator) -> None:
        self.here.epoch, self.here.making = None, False

    def fetch_begins(self, epoch) -> None:
        self.here.epoch = epoch

    def drawn(self, epoch, iterator, indices) -> None:
        record = self.records.get(epoch)
        if record is None or record.wrong or epoch.ended:
            return
        if record.iterator is None:
            record.iterator, record.ordered = weakref.ref(iterator), getattr(iterator, "_in_order", True)
            record.begun = self.fresh
            if iterator._dataset_kind == torchs._DatasetKind.Iterable:
                record.wrong = "an IterableDataset chooses its examples itself"
                record.sampler = sampler_facts(iterator._dataset)
                record.sampler["persistent"] = bool(iterator._num_workers and iterator._persistent_workers)
                return
            record.sampler, record.set = sampler_facts(iterator._index_sampler), set_of(iterator)
        if record.iterator() is not iterator:
            if not (record.exhausted and self.fresh):
                record.wrong = "one loader combines several DataLoaders"
                return
            record.iterator, record.begun, record.exhausted = weakref.ref(iterator), False, False  # it repeats
        step = np.atleast_1d(np.asarray(indices))
        if step.ndim != 1 or not np.issubdtype(step.dtype, np.integer):
            record.wrong = "its sampler does not draw integers"
            return
        self.draws += len(step)
        if self.draws * self.ranks <= MOST_DRAWS:
            record.steps.append(step)

    def fetched(self, epoch, batch) -> None:
        self.here.epoch = None
        record = self.records.get(epoch)
        if record is None or epoch.taken > HASHED_BATCHES or record.hashed >= HASHED_EXAMPLES:
            return
        length = length_of(batch, len(record.steps[epoch.taken - 1]) if len(record.steps) >= epoch.taken else None)
        examples = labels = None
        with contextlib.suppress(Exception):  # a batch can be any object
            examples, labels = numbers_of(batch, length) if length else (None, None)
        record.examples.append(examples)
        record.labels.append(labels)
        record.hashed += length or 0

    def epoch_ended(self, epoch) -> None:
        self.here.epoch = None
        if record := self.records.get(epoch):
            record.iterator = None  # later draws are not needed

    # --- the part -------------------------------------------------------------------------------------------------

    def part(self) -> dict:
        known = [record for record in self.records.values() if record.epoch.taken]
        if not known:
            return {}
        kept = chosen([record.epoch for record in known])
        records = [record for record in known if record.epoch in kept]
        found = {"validations": validations([record for record in known if record.epoch not in kept])}
        if not records:
            return found
        first = records[0]
        records = [record for record in records if record.kind_of_data() == first.kind_of_data()][:MOST_EPOCHS]
        part = {"examples": [record.examples for record in records[:HASHED_EPOCHS]], "set": arrays(first.set),
                "sampler": sampler_seen(records), "wrong": first.wrong}  # fmt: skip
        if first.iterator is None and not first.steps and not first.wrong:
            part["wrong"] = "its batches do not come from torch's DataLoader"
        if not part["wrong"]:
            use_indices_of_one_set(records, part["set"])
            part["walks"] = [record.walk() for record in records]
            part["labels"] = [record.labelled() for record in records[:HASHED_EPOCHS]]
        return found | {"data": part}


def validations(records: list[Drawn]) -> dict[tuple, np.ndarray] | None:
    """The draws of each data set's first complete epoch without training, as indices of the innermost set."""
    found = {}
    for record in records:
        steps, whole = record.walk()
        if whole and steps and not record.wrong and record.set["sizes"][-1]:
            known = arrays(record.set)
            found.setdefault((known["holds"], known["sizes"][-1]), base_indices({"set": known}, np.concatenate(steps)))
    return found or None


def use_indices_of_one_set(records: list[Drawn], known: dict) -> None:
    """If an epoch has its own Subset, convert the indices of all epochs to those of the underlying set."""
    sets = [arrays(record.set) for record in records]
    while known["indices"] and not all(np.array_equal(each["indices"][0], known["indices"][0]) for each in sets):
        for record, each in zip(records, sets, strict=True):
            record.steps = [each["indices"][0][step] for step in record.steps]
        for each in (known, *sets):
            each["indices"], each["sizes"] = each["indices"][1:], each["sizes"][1:]


# --- the data set and the sampler ---------------------------------------------------------------------------------


def set_of(iterator) -> dict:
    """The lengths of a data set and of the sets under a Subset, each Subset's indices, a hash of the contents."""
    data, indices, sizes = iterator._dataset, [], []
    sampler = innermost(iterator._index_sampler)
    while isinstance(data, Subset):
        indices.append(data.indices)
        sizes.append(len(data))
        data = data.dataset
    try:
        sizes.append(len(data))
    except TypeError:
        sizes.append(None)
    try:
        holds = held_by(data)
    except Exception:  # a data set can be any object
        holds = type(data).__name__
    own = sampler.indices if isinstance(sampler, SubsetRandomSampler) else None
    return {"indices": indices, "sizes": sizes, "chosen": own, "holds": digest(holds)}


def arrays(known: dict | None) -> dict | None:
    if known is None:
        return None
    own = None if known["chosen"] is None else np.asarray(known["chosen"])
    return known | {"indices": [np.asarray(part) for part in known["indices"]], "chosen": own}


def held_by(item, depth: int = 3) -> object:
    """An object's plain attributes and some numbers of its arrays, to compare it with another object."""
    if isinstance(item, str | bytes | int | float | bool | type(None)):
        return item
    if isinstance(item, np.memmap):
        return str(item.filename), item.shape, item.offset
    if isinstance(item, torch.Tensor | np.ndarray):
        if isinstance(item, torch.Tensor) and (item.is_cuda or item.is_sparse or item.dtype == torch.bfloat16):
            return tuple(item.shape)
        count = int(np.prod(item.shape))  # by index: a non-contiguous array would be copied completely
        places = np.unravel_index(np.arange(0, count, max(1, count // SAMPLED)), tuple(item.shape) or (1,))
        some = np.asarray(item[places] if item.ndim else item)
        return tuple(item.shape), (repr(some[:20]) if some.dtype == object else some.tobytes())
    if not depth:
        return type(item).__name__
    if isinstance(item, list | tuple):
        some = item[:: max(1, len(item) // 100)]
        return len(item), [held_by(part, depth - 1) for part in some]
    if isinstance(item, dict):
        some = itertools.islice(item.items(), 100)
        return len(item), [(str(key), held_by(value, depth - 1)) for key, value in some]
    plain = {} if callable(item) else vars(item) if hasattr(item, "__dict__") else {}
    return type(item).__name__, [(name, held_by(value, depth - 1)) for name, value in plain.items()]


def innermost(sampler):
    """The sampler inside a batch sampler; the stream inside another stream."""
    for _ in range(5):
        own = getattr(sampler, "__dict__", {})
        stream = isinstance(sampler, IterableDataset)
        inner = own.get("dataset") if stream else own.get("sampler", own.get("batch_sampler"))
        if inner is None:
            break
        sampler = inner
    return sampler


def sampler_facts(outer) -> dict:
    """Facts from the attributes of a sampler, or of an iterable data set.

    replacement: it draws with replacement. repeats: it repeats examples. shuffles: it should make a new order.
    epoch: the epoch that was set; None if it has none.
    """
    samplers = [outer, innermost(outer)]
    facts = {name: value for each in samplers for name, value in getattr(each, "__dict__", {}).items()}
    kind = type(samplers[-1])
    asking = [each for each in samplers if hasattr(type(each), "set_epoch")]
    shuffling = issubclass(kind, RandomSampler | SubsetRandomSampler) or "seed" in facts or bool(asking)
    return {
        "kind": kind.__name__,
        "replacement": bool(facts.get("replacement")) or kind.__name__ == "WeightedRandomSampler",
        "repeats": any("repeat" in name.lower() for name in (*facts, kind.__name__)) or kind.__name__ == "RASampler",
        "shuffles": bool(facts.get("shuffle", shuffling)),
        "set_epoch": bool(asking),
        "epoch": facts.get("epoch") if isinstance(facts.get("epoch"), int) else None,
    }


def sampler_seen(records: list[Drawn]) -> dict | None:
    """The sampler of the first epoch, with the epoch that was set in each of them."""
    if records[0].sampler is None:
        return None
    epochs = [record.sampler["epoch"] for record in records if record.sampler]
    return {name: value for name, value in records[0].sampler.items() if name != "epoch"} | {"epochs": epochs}
