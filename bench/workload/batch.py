"""A batch's inputs, targets or outputs: a structure (bench/structure.py) of tensors with the examples in dimension 0,
or the result of the user's ``collate``."""

from typing import NamedTuple

import torch

from bench import structure


class Collated(NamedTuple):
    """The results of the user's ``collate`` for each forward pass. Only the user's functions and the model read a part,
    because the dimension of the examples is unknown."""

    parts: list
    count: int  # examples in one part


def opened(item):
    """A batch for the model and the user's functions; the first part of a ``Collated``."""
    return item.parts[0] if isinstance(item, Collated) else item


def length(item) -> int:
    """The number of examples.

    >>> length({"loss": torch.tensor(0.5), "ids": torch.zeros(4, 2)})
    4
    """
    if isinstance(item, Collated):
        return item.count * len(item.parts)
    return next((len(tensor) for tensor in structure.tensors(item) if tensor.dim()), 0)


def chunks(item, count: int) -> list:
    """Split into ``count`` parts like ``torch.chunk``.

    >>> [length(part) for part in chunks((torch.zeros(5, 2), torch.zeros(5)), 2)]
    [3, 2]
    """
    if isinstance(item, Collated):
        return [Collated([part], item.count) for part in item.parts]
    return structure.split(item, lambda tensor: tensor.chunk(count))


def split(item, size: int) -> list:
    """Split into parts of ``size`` examples; the last may be smaller. A ``Collated`` keeps its parts."""
    if isinstance(item, Collated):
        return chunks(item, len(item.parts))
    return structure.split(item, lambda tensor: tensor.split(size)) if length(item) else []


def moved(item, device: torch.device):
    """Move to a device; copies from pinned memory do not block. Objects with a method ``to`` move themselves, e.g.
    torch's PackedSequence, whose lengths stay on the CPU."""

    def move(part):
        return part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part.to(device)

    return structure.each(move, item, lambda part: callable(getattr(part, "to", None)))


def in_float32(outputs):
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().float() if tensor.is_floating_point() else tensor.detach()

    return structure.each(convert, outputs)
