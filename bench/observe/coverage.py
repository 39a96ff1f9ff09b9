"""Which images the ranks drew: how often each in an epoch, in what order, and how many of one step are the same.

Only the first epochs are looked at, and a bounded number of draws: a sampler that is wrong is so from the start.
"""

import itertools
from collections.abc import Iterable

import numpy as np

MOST_EPOCHS = 3
MOST_DRAWS = 3_000_000  # over all ranks: two epochs of ImageNet; 24 MB of int64
FEWEST_PAIRS = 10  # of neighbours, where an epoch was not seen whole

Steps = list[np.ndarray]  # one rank's: the indices of the images of each step, [b] int64, in order
Walk = tuple[Steps, bool]  # one epoch of a rank, and whether it was seen whole


def first_steps(steps: Iterable[np.ndarray], ranks: int, epochs: list[tuple[int, int]]) -> Steps:
    """One rank's steps as far as they are looked at. ranks: how many draw. epochs: as for ``walks_of``."""
    last = epochs[MOST_EPOCHS - 1][1] if len(epochs) >= MOST_EPOCHS else None
    kept, draws = [], 0
    for batch in itertools.islice(steps, last):
        draws += len(batch) * ranks
        if draws > MOST_DRAWS:
            break
        kept.append(batch)
    return kept


def walks_of(steps: Steps, epochs: list[tuple[int, int]]) -> list[Walk]:
    """A rank's steps cut into epochs. epochs: for each whole one its first step and the one after its last; what comes
    before and after them is of epochs that are not whole."""
    begins, ends = [first for first, _ in epochs], {end for _, end in epochs}
    cuts = sorted({0, len(steps), *(cut for cut in (*begins, *ends) if cut <= len(steps))})
    return [(steps[a:b], a in begins and b in ends) for a, b in itertools.pairwise(cuts)]


def coverage(ranks: list[list[Walk]], num_images: int) -> dict:
    """``observed["data"]`` (bench/record/observed.py) from the epochs of every rank.

    An epoch may end within its last step, and a sampler may fill that step up with images of before: so the last steps
    are not asked whether an image is there twice. The ranks' epochs are taken together one by one, and the ranks may
    end one after different numbers of steps.
    """
    inner, widest, counts, again = [], 0, [], []
    for walks in zip(*ranks, strict=False):
        whole = all(done for _, done in walks)
        aligned = itertools.zip_longest(*(steps for steps, _ in walks), fillvalue=NONE)
        joined = [np.concatenate(step) for step in aligned]
        widest = max(widest, *map(len, joined), 0)
        inner += joined[:-1] if whole else joined
        if whole and joined and len(counts) < MOST_EPOCHS:
            each = [np.bincount(in_a_row(steps), minlength=num_images) for steps, _ in walks]
            counts.append(sum(each))
            again.append(int(sum((count > 1).sum() for count in each)))
    found = {"num_images": num_images, "global_batch": widest}
    if inner:
        found["shared_in_a_step"] = shared(inner)
    if counts:
        found["epochs"] = [described(*epoch) for epoch in zip(counts, again, strict=True)]
        found["never_seen"] = int((sum(counts) == 0).sum())
    if (same := same_neighbours(ranks, num_images)) is not None:
        found["same_neighbours"] = same
    return found


NONE = np.empty(0, np.int64)


def in_a_row(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([NONE, *parts])


def times_drawn(parts: Iterable[np.ndarray]) -> np.ndarray:
    """How often each number that is there occurs in all parts together."""
    return np.unique(in_a_row(parts), return_counts=True)[1]


def described(counts: np.ndarray, again: int) -> dict:
    """One epoch in numbers. counts: [num_images], how often each image was drawn. again: by how many draws of images a
    rank drew one more than once."""
    return {"draws": int(counts.sum()), "never": int((counts == 0).sum()), "repeated": int((counts > 1).sum()),
            "most": int(counts.max()), "by_one_rank": again}  # fmt: skip


def shared(steps: Steps) -> float:
    """The share of the steps' images that are in their step more than once.

    >>> shared([np.array([1, 2, 3, 1])])
    0.5
    """
    times = [times_drawn([step]) for step in steps]
    return sum(int(each[each > 1].sum()) for each in times) / max(1, sum(map(len, steps)))


def same_neighbours(ranks: list[list[Walk]], num_images: int) -> float | None:
    """The share of the second epoch's neighbours that were neighbours in the first, as far as both were seen; None
    where that is too little."""
    firsts, seconds = [], []
    for walks in ranks:
        if len(walks) < 2:
            return None
        (one, whole), (other, also) = walks[:2]
        most = None if whole and also else min(len(one), len(other))
        firsts.append(pairs(one[:most], num_images))
        seconds.append(pairs(other[:most], num_images))
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    partly = not all(done for walks in ranks for _, done in walks[:2])
    if partly and len(second) < FEWEST_PAIRS:
        return None
    return float(np.isin(second, first).mean()) if len(second) else 0.0


def pairs(steps: Steps, num_images: int) -> np.ndarray:
    """A number for each two images that follow each other on a rank."""
    order = in_a_row(steps)
    return order[:-1] * num_images + order[1:]
