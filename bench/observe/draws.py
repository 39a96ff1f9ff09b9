"""The images that the ranks' loaders draw: the indices that torch's DataLoader asks its sampler for, and numbers made
of the examples' bytes, which tell a data set from another and find an example that several ranks have.

Nothing of a loader is replaced. The one method by which torch's iterators ask for the next indices is listened to.
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
from torch.utils.data import RandomSampler, Subset, SubsetRandomSampler
from torch.utils.data import dataloader as torchs

from bench.observe.coverage import MOST_DRAWS, MOST_EPOCHS, NONE, Walk, coverage, pairs
from bench.observe.examples import length_of, numbers_of
from bench.observe.listening import listen
from bench.observe.probe import Probe, Unheard
from bench.observe.streams import digest
from bench.observe.view import Epoch, chosen

EPOCHS = 8  # that are recorded: validations may come first
HASHED_EPOCHS = 2
HASHED_BATCHES = 16
HASHED_EXAMPLES = 2048
SAMPLED = 2048  # numbers of an array that tell a data set from another
FEWEST_SHARED = 3  # examples that several ranks have, and
SHARED = 0.05  # their share, beyond which it is no chance
SAME_BYTES = 0.1  # share of examples with the same bytes on another rank: the same data set
OTHER_LABELS = 0.2  # share of examples with other labels on another rank: another data set


class Drawn:
    """What was seen of one epoch.

    steps: [b] int64 of each batch, drawn perhaps further than taken. examples, labels: [b] int64 of the first batches.
    wrong: why its indices are of no use. ordered: the batches come as they are drawn. begun, exhausted: torch's
    iterator began and ended in it, and no other.
    """

    def __init__(self, epoch: Epoch):
        self.epoch, self.steps, self.examples, self.labels = epoch, [], [], []
        self.iterator = self.wrong = self.set = self.sampler = None
        self.hashed, self.ordered, self.begun, self.exhausted = 0, True, False, False


class Draws(Probe):
    """The images that are drawn in the epochs that train."""

    joins: ClassVar = {"data": lambda parts: data_of(parts)}
    silent: ClassVar = {"data": "no epoch was seen"}

    def __init__(self, watch):
        super().__init__(watch)
        self.records: dict[Epoch, Drawn] = {}
        self.owners = weakref.WeakKeyDictionary()  # torch's iterator -> the epoch that it serves
        self.here = threading.local()  # .epoch: whose iterator this thread makes or asks just now
        self.draws, self.ranks = 0, 1
        self.end, self.fresh = None, False

    # --- torch's iterators ----------------------------------------------------------------------------------------

    def asks(self, arguments: tuple, options: dict) -> Callable:
        """An iterator asks its sampler for indices."""
        return self.watch.guarded(self, functools.partial(self.heard, arguments[0]))

    def heard(self, iterator, indices) -> None:
        """An iterator has drawn indices: one that is made or asked by an epoch just now, or was so before."""
        epoch = getattr(self.here, "epoch", None) or self.owners.get(iterator)
        if epoch is None:
            return
        self.fresh = iterator not in self.owners or getattr(self.here, "making", False)
        self.owners[iterator] = epoch
        self.watch.tell("drawn", epoch, iterator, indices)

    def ended(self, error: BaseException, arguments: tuple) -> None:
        """An iterator's sampler has no more indices."""
        record = self.records.get(self.owners.get(arguments[0]))
        if record and isinstance(error, StopIteration):
            record.exhausted = True

    def close(self) -> None:
        if self.end:
            self.end()
        self.here.epoch = None

    # --- what happens ---------------------------------------------------------------------------------------------

    def begin(self, loader) -> None:
        self.ranks = self.watch.ranks
        kind, guarded = getattr(torchs, "_BaseDataLoaderIter", None), self.watch.guarded
        if hasattr(kind, "_next_index"):
            self.end = listen(kind, "_next_index", guarded(self, self.asks), guarded(self, self.ended))

    def before_iter(self, epoch) -> None:
        if len(self.records) < EPOCHS:
            self.records[epoch] = Drawn(epoch)
        self.here.epoch, self.here.making = epoch, True

    def after_iter(self, epoch, iterator) -> None:
        self.here.epoch, self.here.making = None, False

    def asked(self, epoch) -> None:
        self.here.epoch = epoch

    def drawn(self, epoch, iterator, indices) -> None:
        record = self.records.get(epoch)
        if record is None or record.wrong or epoch.loader is None:
            return
        if record.iterator is None:
            record.iterator, record.ordered = weakref.ref(iterator), getattr(iterator, "_in_order", True)
            record.begun = self.fresh
            if iterator._dataset_kind == torchs._DatasetKind.Iterable:
                record.wrong, record.sampler = "an IterableDataset draws its examples itself", told(iterator._dataset)
                return
            record.sampler = told(iterator._index_sampler)
            record.set = set_of(iterator)
        if record.iterator() is not iterator:
            if not (record.exhausted and self.fresh):
                record.wrong = "several DataLoaders are behind one loader"
                return
            record.iterator, record.begun, record.exhausted = weakref.ref(iterator), False, False  # it goes round
        step = np.atleast_1d(np.asarray(indices))
        if step.ndim != 1 or not np.issubdtype(step.dtype, np.integer):
            record.wrong = "its sampler draws no whole numbers"
            return
        self.draws += len(step)
        if self.draws * self.ranks <= MOST_DRAWS:
            record.steps.append(step)

    def fetched(self, epoch, batch) -> None:
        self.here.epoch = None
        record = self.records.get(epoch)
        if record is None or epoch.taken > HASHED_BATCHES or record.hashed >= HASHED_EXAMPLES:
            return
        known = len(record.steps[epoch.taken - 1]) if len(record.steps) >= epoch.taken else None
        length = length_of(batch, known)
        examples = labels = None
        with contextlib.suppress(Exception):  # whatever a batch is made of
            examples, labels = numbers_of(batch, length) if length else (None, None)
        record.examples.append(examples)
        record.labels.append(labels)
        record.hashed += length or 0

    def epoch_ended(self, epoch) -> None:
        self.here.epoch = None
        if record := self.records.get(epoch):
            record.iterator = None  # steps that are drawn after it are no longer of interest

    # --- the part -------------------------------------------------------------------------------------------------

    def part(self) -> dict:
        known = [record for record in self.records.values() if record.epoch.taken]
        if not known:
            return {}
        kept = chosen([record.epoch for record in known])
        records = [record for record in known if record.epoch in kept]
        first = records[0]
        records = [record for record in records if alike(record, first)][:MOST_EPOCHS]
        part = {"examples": [record.examples for record in records[:HASHED_EPOCHS]], "set": arrays(first.set),
                "sampler": sampler_seen(records), "wrong": self.wrong(first)}  # fmt: skip
        if part["wrong"]:
            return {"data": part}
        of_one_set(records, part["set"])
        part["walks"] = [walk_of(record) for record in records]
        part["labels"] = [labelled(record) for record in records[:HASHED_EPOCHS]]
        return {"data": part}

    def wrong(self, record: Drawn) -> str | None:
        """Why an epoch's indices are not known."""
        if self.end is None:
            return "this torch keeps its indices elsewhere"
        if record.iterator is None and not record.steps and not record.wrong:
            return "its batches were not seen to come from torch's DataLoader"
        return record.wrong


def alike(record: Drawn, other: Drawn) -> bool:
    """Whether two epochs are of the same data."""
    sizes = [each.set["sizes"] if each.set else None for each in (record, other)]
    return sizes[0] == sizes[1] and bool(record.wrong) == bool(other.wrong)


def of_one_set(records: list[Drawn], known: dict) -> None:
    """Where an epoch has a Subset of its own, the indices of all count in the set that it is taken of."""
    sets = [arrays(record.set) for record in records]
    while known["indices"] and not all(np.array_equal(each["indices"][0], known["indices"][0]) for each in sets):
        for record, each in zip(records, sets, strict=True):
            record.steps = [each["indices"][0][step] for step in record.steps]
            each["indices"], each["sizes"] = each["indices"][1:], each["sizes"][1:]
        known["indices"], known["sizes"] = known["indices"][1:], known["sizes"][1:]


def walk_of(record: Drawn) -> Walk:
    """The batches that were taken, and whether the epoch was seen whole."""
    taken = record.epoch.taken
    return record.steps[:taken], record.begun and record.exhausted and len(record.steps) == taken


def arrays(known: dict | None) -> dict | None:
    """``set_of`` with its lists of indices as arrays."""
    if known is None:
        return None
    chosen_ones = None if known["chosen"] is None else np.asarray(known["chosen"])
    return known | {"indices": [np.asarray(part) for part in known["indices"]], "chosen": chosen_ones}


def labelled(record: Drawn) -> dict[str, np.ndarray]:
    """The first examples: index, and a number of all its bytes and of its labels; 0 where it has none."""
    found = {"index": [NONE], "bytes": [NONE], "labels": [NONE]}
    for step, examples, labels in zip(record.steps, record.examples, record.labels, strict=False):
        if record.ordered and examples is not None and len(examples) == len(step):
            found["index"].append(step)
            found["bytes"].append(examples)
            found["labels"].append(np.zeros_like(examples) if labels is None else labels)
    return {name: np.concatenate(parts) for name, parts in found.items()}


# --- the data set and the sampler ---------------------------------------------------------------------------------


def set_of(iterator) -> dict:
    """What is known of a data set: its length and the lengths of those that it is a Subset of, the indices of each
    Subset, and a hash of what it holds."""
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
    chosen_ones = sampler.indices if isinstance(sampler, SubsetRandomSampler) else None
    try:
        holds = held_by(data)
    except Exception:  # whatever a data set is made of
        holds = type(data).__name__
    return {"indices": indices, "sizes": sizes, "chosen": chosen_ones, "holds": digest(holds)}


def held_by(item, depth: int = 3) -> object:
    """What tells an object from another one: its plain attributes, and some numbers of its arrays."""
    if isinstance(item, str | bytes | int | float | bool | type(None)):
        return item
    if isinstance(item, np.memmap):
        return str(item.filename), item.shape, item.offset
    if isinstance(item, torch.Tensor | np.ndarray):
        if isinstance(item, torch.Tensor) and (item.is_cuda or item.is_sparse or item.dtype == torch.bfloat16):
            return tuple(item.shape)
        count = int(np.prod(item.shape))  # by their places: an array that is not contiguous would be copied whole
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
    """The sampler that a batch sampler draws from."""
    for _ in range(5):
        own = getattr(sampler, "__dict__", {})
        inner = own.get("sampler", own.get("batch_sampler"))
        if inner is None:
            break
        sampler = inner
    return sampler


def told(outer) -> dict:
    """What a sampler, or a data set that draws itself, says of itself.

    replacement: it draws with replacement. repeats: it repeats examples. shuffles: its order is meant to be new.
    epoch: the epoch that it was told; None where it asks for none.
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
    """The sampler of the first epoch, with the epochs that it was told in each of them."""
    if records[0].sampler is None:
        return None
    epochs = [record.sampler["epoch"] for record in records if record.sampler]
    return {name: value for name, value in records[0].sampler.items() if name != "epoch"} | {"epochs": epochs}


# --- the ranks together -------------------------------------------------------------------------------------------


def data_of(parts: list[dict]) -> dict:
    """What the ranks drew. Raises Unheard where it is not known."""
    why = next((part["wrong"] for part in parts if part["wrong"]), None)
    if why:
        return by_examples(parts, why)
    if any(part["set"]["sizes"][-1] is None for part in parts):
        return by_examples(parts, "its data set has no length")
    sizes = [part["set"]["sizes"][-1] for part in parts]
    same = same_set(parts)
    if same is None:
        return by_examples(parts, "whether the ranks read one data set or each its own is not known")
    if same:
        ranks, num_images = in_one_set(parts)
    else:  # each reads its own: images of several sets, one after the other
        starts = np.cumsum([0, *(part["set"]["sizes"][0] for part in parts)])
        ranks = [[([step + start for step in steps], whole) for steps, whole in part["walks"]]
                 for part, start in zip(parts, starts, strict=False)]  # fmt: skip
        num_images = int(starts[-1])
    steps = [step for walks in ranks for walk, _ in walks for step in walk if len(step)]
    if any(step.min() < 0 or step.max() >= num_images for step in steps):
        raise Unheard(f"its sampler draws other numbers than 0 to {max(sizes) - 1}")
    found = coverage(ranks, num_images)
    found |= {"sampler": parts[0]["sampler"], "own_sets": not same, "alike": alike_steps(ranks)}
    if not same and (shared := shared_examples(parts)):
        found["shared_examples"] = shared
    lacking = {"epochs": "no epoch was seen to its end", "same_neighbours": "only one epoch was seen"}
    return found | {"unheard": {name: reason for name, reason in lacking.items() if name not in found}}


def alike_steps(ranks: list[list[Walk]]) -> float:
    """The share of the steps in which all ranks draw the same images in the same order; 0 for one rank."""
    steps = [[step for steps, _ in walks for step in steps] for walks in ranks]
    same = [all(np.array_equal(step, own[0]) for step in own[1:]) for own in zip(*steps, strict=False)]
    return sum(same) / len(same) if same and len(ranks) > 1 else 0.0


def in_one_set(parts: list[dict]) -> tuple[list[list[Walk]], int]:
    """The ranks' walks in numbers that mean the same image on all ranks, and of how many images.

    Where all have the same Subset, or the same chosen images, its places count; otherwise those in the whole set.
    """
    ranks = [part["walks"] for part in parts]
    sets = [part["set"] for part in parts]
    own = [each["chosen"] for each in sets]
    if all(each is not None and np.array_equal(np.sort(each), np.sort(own[0])) for each in own):
        places = np.zeros(max(sets[0]["sizes"][0], int(own[0].max(initial=0)) + 1), np.int64)
        places[own[0]] = np.arange(len(own[0]))
        return mapped(ranks, [places] * len(ranks)), len(own[0])
    level = 0
    while any(level < len(each["indices"]) for each in sets):
        indices = [each["indices"][level] if level < len(each["indices"]) else None for each in sets]
        if all(each is not None and np.array_equal(each, indices[0]) for each in indices):
            break
        if any(each is None for each in indices):
            raise Unheard("some ranks have a Subset, others the whole set")
        ranks, level = mapped(ranks, indices), level + 1
    return ranks, sets[0]["sizes"][level]


def mapped(ranks: list[list[Walk]], numbers: list[np.ndarray]) -> list[list[Walk]]:
    """The walks with each index replaced by its number."""
    return [[([number[step] for step in steps], whole) for steps, whole in walks]
            for walks, number in zip(ranks, numbers, strict=True)]  # fmt: skip


def same_set(parts: list[dict]) -> bool | None:
    """Whether the same index is the same image on all ranks; None where that is not known.

    Where two ranks have drawn the same index, its labels say so, and its bytes, unless they are augmented. Otherwise
    the sets are the same if they hold the same attributes.
    """
    if len({part["set"]["sizes"][-1] for part in parts}) > 1:
        return False
    verdicts = [verdict(parts[0], part) for part in parts[1:]]
    if False in verdicts:
        return False
    if len({part["set"]["holds"] for part in parts}) == 1:
        return True
    if all(verdicts):
        return True
    overlap = [np.intersect1d(*(np.concatenate([NONE, *(s for steps, _ in part["walks"] for s in steps)])
                                for part in (parts[0], other))).size for other in parts[1:]]  # fmt: skip
    return None if any(overlap) else True


def verdict(one: dict, other: dict) -> bool | None:
    """What the examples say that two ranks have both drawn."""
    (index, bytes_, labels, steady), (others, other_bytes, other_labels, also) = map(first_examples, (one, other))
    _, left, right = np.intersect1d(index, others, return_indices=True)
    if not len(left):
        return None
    if (bytes_[left] == other_bytes[right]).mean() > SAME_BYTES:
        return True
    if not (steady and also and labels[left].any()):
        return None
    same = (labels[left] == other_labels[right]).mean()
    if same < 1 - OTHER_LABELS:
        return False
    return True if len(np.unique(labels[left])) > 1 and len(left) >= 2 * FEWEST_SHARED else None


def first_examples(part: dict) -> tuple:
    """The first examples of a rank, each once: index in the innermost data set, bytes, labels; and whether an example
    that came twice had the same labels both times."""
    known = {name: np.concatenate([epoch[name] for epoch in part["labels"]]) for name in ("index", "bytes", "labels")}
    index, first, place = np.unique(in_base(part, known["index"]), return_index=True, return_inverse=True)
    labels = known["labels"][first]
    return index, known["bytes"][first], labels, bool((labels[place] == known["labels"]).all())


def in_base(part: dict, index: np.ndarray) -> np.ndarray:
    """Indices in the innermost data set."""
    for indices in part["set"]["indices"]:
        index = indices[index]
    return index


# --- examples by their bytes --------------------------------------------------------------------------------------


def by_examples(parts: list[dict], why: str) -> dict:
    """What the examples' bytes alone say. Raises Unheard where they say nothing."""
    shared = shared_examples(parts)
    if shared is None:
        raise Unheard(why)
    found = {"shared_examples": shared, "sampler": parts[0]["sampler"]}
    lacking = {"epochs": why}
    same = repeated_order(parts)
    if same is None or not (parts[0]["sampler"] or {}).get("shuffles"):  # many streams have an order of their own
        lacking["same_neighbours"] = why
    else:
        found |= {"same_neighbours": same, "num_images": shared["of"]}
    return found | {"unheard": lacking}


def numbers(part: dict, epoch: int) -> np.ndarray:
    """The examples of a rank's first batches of an epoch."""
    known = part["examples"][epoch] if epoch < len(part["examples"]) else []
    return np.concatenate([NONE, *(examples for examples in known if examples is not None)])


def shared_examples(parts: list[dict]) -> dict | None:
    """How many examples of the first batches several ranks have; None where that says nothing.

    A stream without an end comes round again, and another rank's examples with it: so only the batches before the
    first example that a rank has twice count.
    """
    ranks = [part["examples"][0] if part["examples"] else [] for part in parts]
    until = min(before_again(batches) for batches in ranks)
    own = [np.concatenate([NONE, *batches[:until]]) for batches in ranks]
    if not all(map(len, own)):
        return None
    _, times = np.unique(np.concatenate(own), return_counts=True)
    count = int((times > 1).sum())
    found = count if count >= FEWEST_SHARED and count > SHARED * len(times) else 0
    return {"shared": found, "of": len(times)}


def before_again(batches: list[np.ndarray | None]) -> int:
    """How many batches a rank has before it has an example again, or one whose bytes are not known."""
    seen = set()
    for number, batch in enumerate(batches):
        if batch is None or len(seen | set(batch.tolist())) < len(seen) + len(batch):
            return number
        seen |= set(batch.tolist())
    return len(batches)


def repeated_order(parts: list[dict]) -> float | None:
    """The share of neighbours that the second epoch has of the first; None where they have no examples in common."""
    shares = []
    for part in parts:
        first, second = numbers(part, 0), numbers(part, 1)
        if not len(first) or np.isin(second, first).sum() < max(10, len(second) / 2):
            return None
        different, places = np.unique(np.concatenate([first, second]), return_inverse=True)
        one, other = (pairs([side], len(different)) for side in np.split(places, [len(first)]))
        shares.append(float(np.isin(other, one).mean()))
    return min(shares)
