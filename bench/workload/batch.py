"""A batch's inputs, targets or outputs: one tensor, or a tuple of them, whose first dimension is the example's."""

from collections.abc import Callable

import torch


def each(function: Callable, item):
    """``function`` of every tensor: of one, or of those of a tuple, as a tuple."""
    return tuple(each(function, part) for part in item) if isinstance(item, tuple | list) else function(item)


def tensors(item) -> list[torch.Tensor]:
    """The tensors in it."""
    return [found for part in item for found in tensors(part)] if isinstance(item, tuple | list) else [item]


def length(item) -> int:
    """How many examples it has."""
    return len(tensors(item)[0])


def chunks(item, count: int) -> list:
    """It in ``count`` parts, as ``torch.chunk`` cuts.

    >>> [length(part) for part in chunks((torch.zeros(5, 2), torch.zeros(5)), 2)]
    [3, 2]
    """
    if isinstance(item, tuple | list):
        return list(zip(*(chunks(part, count) for part in item), strict=True))
    return list(item.chunk(count))


def split(item, size: int) -> list:
    """It in parts of ``size`` examples; the last may be smaller."""
    return [each(lambda tensor, at=at: tensor[at : at + size], item) for at in range(0, length(item), size)]


def moved(item, device: torch.device):
    """It on a device; the host does not wait for a copy from pinned memory."""
    return each(lambda tensor: tensor.to(device, non_blocking=True), item)
