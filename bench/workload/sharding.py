"""The assignment of images to processes, in every mode.

One permutation per epoch, from the seed. The epochs form one stream, cut into global batches: no remainder is lost, and
no image is used twice in an epoch. Device d of D takes every D-th index of a global batch, so DP's chunk for device d
has exactly the images of DDP's rank d.

A draw is epoch x num_images + index. A random crop depends only on (seed, draw): it changes every epoch, and is the
same in every mode, on any rank and loader worker."""

from collections.abc import Callable, Iterator

import numpy as np

FINGERPRINTED_STEPS = 20  # steps whose images are verifiable from a record


def epoch_permutation(num_images: int, seed: int, epoch: int) -> np.ndarray:
    """The order of one epoch, the same on every process: [num_images] indices."""
    return np.random.default_rng((seed, epoch)).permutation(num_images)


def global_batches(
    num_images: int, seed: int, global_batch: int, first: int = 0, order: Callable = epoch_permutation
) -> Iterator[np.ndarray]:
    """An endless stream of [global_batch] draws. An epoch's remainder begins the next epoch's first batch.

    first: images seen before, with any batch size: the stream continues there. order: (num_images, seed, epoch) -> the
    indices of an epoch; injected mistakes pass others.
    """
    epoch, begun = divmod(first, num_images)
    rest = np.empty(0, dtype=np.int64)
    while True:
        while len(rest) < global_batch:
            rest = np.concatenate([rest, order(num_images, seed, epoch)[begun:] + epoch * num_images])
            epoch, begun = epoch + 1, 0
        yield rest[:global_batch]
        rest = rest[global_batch:]


def shard(batch: np.ndarray, first_device: int, devices: int, num_devices: int) -> np.ndarray:
    """The part of a global batch for a process that drives ``devices`` devices from ``first_device`` on.

    >>> shard(np.arange(8), first_device=1, devices=1, num_devices=4)    # DDP's rank 1 of 4
    array([1, 5])
    >>> shard(np.arange(8), first_device=0, devices=4, num_devices=4)    # DP: one chunk per device
    array([0, 4, 1, 5, 2, 6, 3, 7])
    """
    return np.concatenate([batch[d::num_devices] for d in range(first_device, first_device + devices)])


def steps_of_epochs(num_images: int, epochs: int, global_batch: int, step: int = 0, images_seen: int = 0) -> list[int]:
    """The step after which each epoch ends, rounded up to whole steps. step, images_seen: the position of a resumed
    run; epochs that had ended by then get this step or an earlier one.

    >>> steps_of_epochs(num_images=100, epochs=3, global_batch=40)    # 2.5 steps per epoch
    [3, 5, 8]
    >>> steps_of_epochs(100, 3, global_batch=80, step=3, images_seen=120)    # resumed with twice the batch
    [3, 4, 6]
    """
    return [step - (images_seen - num_images * epoch) // global_batch for epoch in range(1, epochs + 1)]


def fingerprint(indices: np.ndarray) -> int:
    """A hash of a set of images: the sum of the ranks' fingerprints is the global batch's, modulo 2^48. So records show
    that two modes trained on the same images. Each index is mixed by SplitMix64's finaliser (Steele, Lea and Flood
    2014), so that sums do not collide by chance. Of index 0 that is SplitMix64's first number for seed 0:

    >>> fingerprint(np.array([0])) == 0xE220A8397B1DCDAF % 2**48
    True
    >>> fingerprint(np.array([5, 1])) == (fingerprint(np.array([1])) + fingerprint(np.array([5]))) % 2**48
    True
    """
    x = indices.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(31))) % np.uint64(2**48)
    return int(sum(int(value) for value in x) % 2**48)


def coverage(num_images: int, seed: int, epochs: int, stretches: list[tuple[int, int, int, int]]) -> list[dict]:
    """The numbers of images in each epoch that were trained on once, more than once and never.

    stretches: (images seen before, images seen after, global batch, devices) of each part of an elastic training.

    >>> coverage(10, seed=0, epochs=1, stretches=[(0, 8, 4, 2), (4, 6, 2, 1)])
    [{'epoch': 1, 'once': 6, 'more': 2, 'never': 2}]
    """
    counts = np.zeros(epochs * num_images, dtype=np.int64)
    for first, end, global_batch, devices in stretches:
        batches = global_batches(num_images, seed, global_batch, first)
        for _ in range(first, end, global_batch):
            batch = next(batches)
            draws = np.concatenate([shard(batch, device, 1, devices) for device in range(devices)])
            np.add.at(counts, draws[draws < len(counts)], 1)  # the last step may begin an epoch that is not trained
    return [
        {"epoch": number, "once": int((row == 1).sum()), "more": int((row > 1).sum()), "never": int((row == 0).sum())}
        for number, row in enumerate(counts.reshape(epochs, num_images), start=1)
    ]
