"""Examples in a batch of any structure: their number, and a hash of the bytes of each."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import torch

ELEMENTS = 1024  # of an example that are hashed, evenly spaced


def length_of(batch, known: int | None = None) -> int | None:
    """Examples in a batch; None if unknown. known: the number of indices it was made from.

    The length is the first dimension of stacked tensors, in a pair, a dict or an object. For a tuple of images of
    different sizes, or with a dict each, it is the number of items.

    >>> length_of((torch.zeros(8, 3, 4, 4), torch.zeros(8)))
    8
    >>> length_of(([torch.zeros(3, 4, 5), torch.zeros(3, 5, 4)], [{"boxes": torch.zeros(7, 4)}, {}]))
    2
    """
    try:
        return known if known is not None else counted(batch)
    except Exception:  # a batch can be any object
        return None


def counted(batch, depth: int = 4) -> int | None:
    if is_array(batch):
        return len(batch) if batch.ndim else None
    items = list(items_of(batch))
    lists = [item for item in items if is_list(item)]
    if lists and len({len(item) for item in lists}) == 1 and is_example(lists[0][0] if lists[0] else None):
        return len(lists[0])  # what zip(*examples) makes
    arrays = [item for item in items if is_array(item) and item.ndim]
    if is_list(batch) and len(arrays) == len(items) > 0 and is_example(items[0]):
        shapes = {tuple(array.shape) for array in arrays}
        return len(items) if len(shapes) > 1 or items[0].ndim == 3 else first_dimension(arrays)
    found = first_dimension(arrays)
    if found is None and depth:  # in the first part that has a length
        parts = (counted(item, depth - 1) for item in items if not is_array(item))
        found = next((length for length in parts if length), None)
    return found


def first_dimension(arrays: list) -> int | None:
    """The common one, or that of the only image among them."""
    lengths = Counter(len(array) for array in arrays)
    images = {len(array) for array in arrays if array.ndim >= 4}
    return next(iter(lengths)) if len(lengths) == 1 else images.pop() if len(images) == 1 else None


def is_array(item) -> bool:
    return isinstance(item, torch.Tensor | np.ndarray)


def is_list(item) -> bool:
    return isinstance(item, list | tuple)


def is_example(item) -> bool:
    """Whether it looks like one example rather than a batch: an image, or the dict of one."""
    return isinstance(item, Mapping) or (is_array(item) and item.ndim in (0, 1, 3))


def items_of(batch) -> Iterator:
    if isinstance(batch, Mapping):
        yield from batch.values()
    elif is_list(batch):
        yield from batch
    elif dataclasses.is_dataclass(batch) or hasattr(batch, "__dict__"):
        yield from vars(batch).values()


def leaves(batch, depth: int = 4) -> Iterator:
    if is_array(batch) or (is_list(batch) and batch and isinstance(batch[0], str | int | float)):
        yield batch
    elif depth:
        for item in items_of(batch):
            yield from leaves(item, depth - 1)


def numbers_of(batch, length: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """[length] int64, a hash for each example: of all its bytes, and of its labels; None without any."""
    rows, labels = [], []
    for leaf in leaves(batch):
        if (is_array(leaf) and not leaf.ndim) or len(leaf) != length:
            continue
        row = rows_of(leaf)
        rows.append(row)
        if is_array(leaf) and leaf.ndim == 1:
            labels.append(row)
    return hashed(rows, length), hashed(labels, length)


def rows_of(leaf) -> list[bytes]:
    if is_list(leaf):
        return [repr(item).encode() for item in leaf]
    flat = leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
    flat = flat.reshape(len(leaf), -1)
    flat = flat[:, :: max(1, flat.shape[1] // ELEMENTS)]
    if isinstance(flat, torch.Tensor):
        flat = flat.cpu()
        flat = (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()
    return [row.tobytes() for row in flat]


def hashed(rows: list[list[bytes]], length: int) -> np.ndarray | None:
    if not rows:
        return None
    digests = [hashlib.blake2b(b"".join(row[i] for row in rows), digest_size=8).digest() for i in range(length)]
    return np.frombuffer(b"".join(digests), np.int64)
