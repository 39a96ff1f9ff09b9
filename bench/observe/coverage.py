"""The examples that all ranks drew: how often each in an epoch, in which order, and which ones several ranks drew.

Only the first epochs and a limited number of draws are used: a wrong sampler is wrong from the start.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from bench.observe.probe import NotObserved

MOST_EPOCHS = 3
MOST_DRAWS = 3_000_000  # over all ranks: two epochs of ImageNet; 24 MB of int64
FEWEST_PAIRS = 10  # of neighbours, if an epoch was not observed completely
FEWEST_SHARED = 3  # examples that several ranks have, and
SHARED = 0.05  # their share, above which it is not by chance
SAME_BYTES = 0.1  # share of examples with the same bytes on another rank: the same data set
OTHER_LABELS = 0.2  # share of examples with other labels on another rank: another data set

Steps = list[np.ndarray]  # one rank's: the indices of the images of each step, [b] int64, in order
Walk = tuple[Steps, bool]  # one epoch of a rank, and whether it was observed completely
NONE = np.empty(0, np.int64)


def first_steps(steps: Iterable[np.ndarray], ranks: int, epochs: list[tuple[int, int]]) -> Steps:
    """The part of a rank's steps that is analysed. ranks: their number. epochs: as for ``walks_of``."""
    last = epochs[MOST_EPOCHS - 1][1] if len(epochs) >= MOST_EPOCHS else None
    kept, draws = [], 0
    for batch in itertools.islice(steps, last):
        draws += len(batch) * ranks
        if draws > MOST_DRAWS:
            break
        kept.append(batch)
    return kept


def walks_of(steps: Steps, epochs: list[tuple[int, int]]) -> list[Walk]:
    """A rank's steps cut into epochs. epochs: the first step of each complete one, and the step after its last."""
    begins, ends = [first for first, _ in epochs], {end for _, end in epochs}
    cuts = sorted({0, len(steps), *(cut for cut in (*begins, *ends) if cut <= len(steps))})
    return [(steps[a:b], a in begins and b in ends) for a, b in itertools.pairwise(cuts)]


def coverage(ranks: list[list[Walk]], num_images: int) -> dict:
    """``observed["data"]`` (bench/record/observed.py) from the epochs of every rank.

    An epoch may end within its last step, and a sampler may pad that step with earlier images, so the last steps are
    not searched for repeated images. The ranks may end an epoch after different numbers of steps.
    """
    inner, widest, epochs, total = [], 0, [], 0
    for walks in zip(*ranks, strict=False):
        whole = all(done for _, done in walks)
        joined = [np.concatenate(step) for step in itertools.zip_longest(*(s for s, _ in walks), fillvalue=NONE)]
        widest = max(widest, *map(len, joined), 0)
        inner += joined[:-1] if whole else joined
        if whole and joined and len(epochs) < MOST_EPOCHS:
            each = [np.bincount(concatenate(steps), minlength=num_images) for steps, _ in walks]
            counts = sum(each)
            total = total + counts
            epochs.append({
                "draws": int(counts.sum()),
                "never": int((counts == 0).sum()),
                "repeated": int((counts > 1).sum()),
                "most": int(counts.max()),
                "by_one_rank": int(sum((count > 1).sum() for count in each)),  # images that one rank drew repeatedly
            })  # fmt: skip
    found = {"num_images": num_images, "global_batch": widest}
    if inner:
        found["shared_in_a_step"] = shared(inner)
    if epochs:
        found |= {"epochs": epochs, "never_seen": int((total == 0).sum())}
    if (same := same_neighbours(ranks, num_images)) is not None:
        found["same_neighbours"] = same
    return found


def concatenate(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([NONE, *parts])


def times_drawn(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.unique(concatenate(parts), return_counts=True)[1]


def shared(steps: Steps) -> float:
    """The share of images that occur more than once in their step.

    >>> shared([np.array([1, 2, 3, 1])])
    0.5
    """
    times = [times_drawn([step]) for step in steps]
    return sum(int(each[each > 1].sum()) for each in times) / max(1, sum(map(len, steps)))


def same_neighbours(ranks: list[list[Walk]], num_images: int) -> float | None:
    """The share of the second epoch's neighbours that were neighbours in the first; None if there are too few."""
    if any(len(walks) < 2 for walks in ranks):
        return None
    firsts, seconds = [], []
    for (one, whole), (other, also), *_ in ranks:
        most = None if whole and also else min(len(one), len(other))
        firsts.append(pairs(one[:most], num_images))
        seconds.append(pairs(other[:most], num_images))
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    partly = not all(done for walks in ranks for _, done in walks[:2])
    if partly and len(second) < FEWEST_PAIRS:
        return None
    return float(np.isin(second, first).mean()) if len(second) else 0.0


def pairs(steps: Steps, num_images: int) -> np.ndarray:
    """A number for each pair of successive images of a rank."""
    order = concatenate(steps)
    return order[:-1] * num_images + order[1:]


# --- ranks whose data sets may differ -----------------------------------------------------------------------------


def data_of(parts: list[dict]) -> dict:
    """The draws of a script's ranks. A part: see ``Draws.part`` (draws.py). Raises NotObserved if they are unknown."""
    why = next((part["wrong"] for part in parts if part["wrong"]), None)
    if why:
        return by_examples(parts, why)
    sizes = [part["set"]["sizes"][-1] for part in parts]
    if None in sizes:
        return by_examples(parts, "its data set has no length")
    same = same_set(parts)
    if same is None:
        return by_examples(parts, "unknown whether the ranks read one data set or each its own")
    if same:
        ranks, num_images = in_one_set(parts)
    else:  # each reads its own: the sets are concatenated
        starts = np.cumsum([0, *(part["set"]["sizes"][0] for part in parts)])
        ranks = [[([step + start for step in steps], whole) for steps, whole in part["walks"]]
                 for part, start in zip(parts, starts, strict=False)]  # fmt: skip
        num_images = int(starts[-1])
    steps = [step for walks in ranks for walk, _ in walks for step in walk if len(step)]
    if any(step.min() < 0 or step.max() >= num_images for step in steps):
        raise NotObserved(f"its sampler draws indices outside 0 to {max(sizes) - 1}")
    found = coverage(ranks, num_images)
    found |= {"sampler": parts[0]["sampler"], "own_sets": not same, "alike": equal_steps(ranks)}
    if not same and (shared := shared_examples(parts)):
        found["shared_examples"] = shared
    missing_reasons = {"epochs": "no epoch was observed to its end", "same_neighbours": "only one epoch was observed"}
    return found | {"unheard": {name: reason for name, reason in missing_reasons.items() if name not in found}}


def equal_steps(ranks: list[list[Walk]]) -> float:
    """The share of the steps in which all ranks draw the same images in the same order; 0 for one rank."""
    steps = [[step for steps, _ in walks for step in steps] for walks in ranks]
    same = [all(np.array_equal(step, own[0]) for step in own[1:]) for own in zip(*steps, strict=False)]
    return sum(same) / len(same) if same and len(ranks) > 1 else 0.0


def in_one_set(parts: list[dict]) -> tuple[list[list[Walk]], int]:
    """The ranks' walks in indices that mean the same image on all ranks, and the number of images.

    If all have the same Subset, or the same selected images, these are indices in it; otherwise in the whole set.
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
            raise NotObserved("some ranks have a Subset, but others have the whole set")
        ranks, level = mapped(ranks, indices), level + 1
    return ranks, sets[0]["sizes"][level]


def mapped(ranks: list[list[Walk]], numbers: list[np.ndarray]) -> list[list[Walk]]:
    return [[([number[step] for step in steps], whole) for steps, whole in walks]
            for walks, number in zip(ranks, numbers, strict=True)]  # fmt: skip


def same_set(parts: list[dict]) -> bool | None:
    """Whether the same index is the same image on all ranks; None if unknown.

    Compares the labels of examples that two ranks have both drawn, and their bytes unless they are augmented. Without
    such examples, the sets are the same if they have the same attributes.
    """
    if len({part["set"]["sizes"][-1] for part in parts}) > 1:
        return False
    verdicts = [same_examples(parts[0], part) for part in parts[1:]]
    if False in verdicts:
        return False
    if len({part["set"]["holds"] for part in parts}) == 1 or all(verdicts):
        return True
    first, *others = [concatenate(step for steps, _ in part["walks"] for step in steps) for part in parts]
    return None if any(np.isin(first, other).any() for other in others) else True


def same_examples(one: dict, other: dict) -> bool | None:
    """Whether the examples that two ranks have both drawn are the same; None if unknown."""
    (index, bytes_, labels, steady), (others, other_bytes, other_labels, also) = map(first_examples, (one, other))
    _, left, right = np.intersect1d(index, others, return_indices=True)
    if not len(left):
        return None
    if (bytes_[left] == other_bytes[right]).mean() > SAME_BYTES:
        return True
    if not (steady and also and labels[left].any()):
        return None
    if (labels[left] == other_labels[right]).mean() < 1 - OTHER_LABELS:
        return False
    return True if len(np.unique(labels[left])) > 1 and len(left) >= 2 * FEWEST_SHARED else None


def first_examples(part: dict) -> tuple:
    """The first examples, each once: index in the innermost set, bytes, labels; whether labels are constant."""
    known = {name: np.concatenate([epoch[name] for epoch in part["labels"]]) for name in ("index", "bytes", "labels")}
    index, first, place = np.unique(base_indices(part, known["index"]), return_index=True, return_inverse=True)
    labels = known["labels"][first]
    return index, known["bytes"][first], labels, bool((labels[place] == known["labels"]).all())


def base_indices(part: dict, index: np.ndarray) -> np.ndarray:
    for indices in part["set"]["indices"]:
        index = indices[index]
    return index


def validations_of(parts: list[dict]) -> list[dict] | None:
    """For each set that all ranks iterated without training: the ranks' draws, the number of different examples, how
    many of these were drawn more than once, and whether the set is sharded over the ranks."""
    found = []
    for key in (key for key in parts[0] if all(key in part for part in parts)):
        own = [np.sort(part[key]) for part in parts]
        times = times_drawn(own)
        shared = not all(np.array_equal(each, own[0]) for each in own)
        found.append({"draws": int(times.sum()), "examples": len(times),
                      "shared": int((times > 1).sum()) if shared else 0, "shared_out": shared})  # fmt: skip
    return found or None


# --- examples by their bytes --------------------------------------------------------------------------------------


def by_examples(parts: list[dict], why: str) -> dict:
    """``observed["data"]`` from only the examples' bytes. Raises NotObserved if they are not sufficient."""
    shared = shared_examples(parts)
    if shared is None:
        raise NotObserved(why)
    found = {"shared_examples": shared, "sampler": parts[0]["sampler"]}
    missing_reasons = {"epochs": why}
    same, sampler = repeated_order(parts), parts[0]["sampler"] or {}
    shuffles = sampler.get("shuffles") or len(set(sampler.get("epochs", []))) > 1
    if same is None or not shuffles:  # many streams have a fixed order
        missing_reasons["same_neighbours"] = why
    else:
        found |= {"same_neighbours": same, "num_images": shared["of"]}
    return found | {"unheard": missing_reasons}


def shared_examples(parts: list[dict]) -> dict | None:
    """How many examples of the first batches several ranks have; None if unknown.

    An endless stream repeats, and with it another rank's examples, so only the batches before the first repeated
    example of a rank count.
    """
    ranks = [part["examples"][0] if part["examples"] else [] for part in parts]
    until = min(before_again(batches) for batches in ranks)
    own = [concatenate(batches[:until]) for batches in ranks]
    if not all(map(len, own)):
        return None
    times = times_drawn(own)
    count = int((times > 1).sum())
    found = count if count >= FEWEST_SHARED and count > SHARED * len(times) else 0
    return {"shared": found, "of": len(times)}


def before_again(batches: list[np.ndarray | None]) -> int:
    """A rank's number of batches before the first repeated example, or the first one with unknown bytes."""
    seen = set()
    for number, batch in enumerate(batches):
        if batch is None or len(seen | set(batch.tolist())) < len(seen) + len(batch):
            return number
        seen |= set(batch.tolist())
    return len(batches)


def repeated_order(parts: list[dict]) -> float | None:
    """The share of the second epoch's neighbours that were neighbours in the first; None without common examples."""
    shares = []
    for part in parts:
        first, second = (concatenate(examples for examples in epoch if examples is not None)
                         for epoch in [*part["examples"], [], []][:2])  # fmt: skip
        if not len(first) or np.isin(second, first).sum() < max(10, len(second) / 2):
            return None
        different, places = np.unique(np.concatenate([first, second]), return_inverse=True)
        one, other = (pairs([side], len(different)) for side in np.split(places, [len(first)]))
        shares.append(float(np.isin(other, one).mean()))
    return min(shares)
