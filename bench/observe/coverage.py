"""Which images the ranks drew: how often each in an epoch, in what order, and how many of one step are the same.

Only the first epochs are looked at, and a bounded number of draws: a sampler that is wrong is so from the start.
"""

import itertools
from collections.abc import Iterable

import numpy as np

MOST_EPOCHS = 3
MOST_DRAWS = 3_000_000  # over all ranks: two epochs of ImageNet; 24 MB of int64

Steps = list[np.ndarray]  # one rank's: the indices of the images of each step, [b] int64, in order


def first_steps(steps: Iterable[np.ndarray], ranks: int, epochs: list[tuple[int, int]]) -> Steps:
    """One rank's steps as far as they are looked at. ranks: how many draw. epochs: as for ``coverage``."""
    last = epochs[MOST_EPOCHS - 1][1] if len(epochs) >= MOST_EPOCHS else None
    kept, draws = [], 0
    for batch in itertools.islice(steps, last):
        draws += len(batch) * ranks
        if draws > MOST_DRAWS:
            break
        kept.append(batch)
    return kept


def coverage(ranks: list[Steps], num_images: int, epochs: list[tuple[int, int]]) -> dict:
    """``observed["data"]`` (bench/record/observed.py) from the steps of every rank.

    epochs: for each whole epoch its first step and the one after its last. An epoch may end within its last step, and
    a sampler may fill that step up with images of before: so the last steps are not asked whether an image is there
    twice. Epochs of which the end was not seen are left out.
    """
    joined = [np.concatenate(parts) for parts in itertools.zip_longest(*ranks, fillvalue=np.empty(0, np.int64))]
    seen = [(first, end) for first, end in epochs[:MOST_EPOCHS] if end <= len(joined)]
    counts = [np.bincount(np.concatenate(joined[first:end]), minlength=num_images) for first, end in seen]
    ends = {end for _, end in epochs}
    inner = [step for number, step in enumerate(joined, 1) if number not in ends]
    found = {"num_images": num_images, "global_batch": max(map(len, joined), default=0)}
    if inner:
        found["shared_in_a_step"] = shared(inner)
    if counts:
        found["epochs"] = [described(count) for count in counts]
        found["never_seen"] = int((sum(counts) == 0).sum())
    if len(seen) > 1:
        first, second = (pairs(ranks, num_images, *epoch) for epoch in seen[:2])
        found["same_neighbours"] = float(np.isin(second, first).mean()) if len(second) else 0.0
    return found


def described(counts: np.ndarray) -> dict:
    """One epoch in numbers. counts: [num_images], how often each image was drawn."""
    return {"draws": int(counts.sum()), "never": int((counts == 0).sum()), "repeated": int((counts > 1).sum()),
            "most": int(counts.max())}  # fmt: skip


def shared(steps: Steps) -> float:
    """The share of the steps' images that are in their step more than once.

    >>> shared([np.array([1, 2, 3, 1])])
    0.5
    """
    twice = 0
    for step in steps:
        _, times = np.unique(step, return_counts=True)
        twice += int(times[times > 1].sum())
    return twice / max(1, sum(map(len, steps)))


def pairs(ranks: list[Steps], num_images: int, first: int, end: int) -> np.ndarray:
    """A number for each two images that follow each other on a rank, of all ranks, from step ``first`` to ``end``."""
    orders = [np.concatenate(steps[first:end]) for steps in ranks if steps[first:end]]
    return np.concatenate([order[:-1] * num_images + order[1:] for order in orders])
