"""A batch's inputs, targets or outputs: a structure (bench/structure.py) of tensors whose first dimension is the
example's, or what the user's ``collate`` has made of the examples."""

from typing import NamedTuple

import torch

from bench import structure


class Collated(NamedTuple):
    """Examples that the user's ``collate`` has put together: a part for each forward pass. Only the user's functions
    and the model look into a part, because nothing says which of its dimensions is the example's.

    count: the examples in one part.
    """

    parts: list
    count: int


def opened(item):
    """A batch as the model and the user's functions take it. Of what was collated, the first part."""
    return item.parts[0] if isinstance(item, Collated) else item


def length(item) -> int:
    """How many examples it has.

    >>> length({"loss": torch.tensor(0.5), "ids": torch.zeros(4, 2)})
    4
    """
    if isinstance(item, Collated):
        return item.count * len(item.parts)
    return next((len(tensor) for tensor in structure.tensors(item) if tensor.dim()), 0)


def chunks(item, count: int) -> list:
    """It in ``count`` parts, as ``torch.chunk`` cuts.

    >>> [length(part) for part in chunks((torch.zeros(5, 2), torch.zeros(5)), 2)]
    [3, 2]
    """
    if isinstance(item, Collated):
        return [Collated([part], item.count) for part in item.parts]
    return structure.split(item, lambda tensor: tensor.chunk(count))


def split(item, size: int) -> list:
    """It in parts of ``size`` examples; the last may be smaller. What was collated stays in the parts that it has."""
    if isinstance(item, Collated):
        return chunks(item, len(item.parts))
    return structure.split(item, lambda tensor: tensor.split(size)) if length(item) else []


def moved(item, device: torch.device):
    """It on a device; the host does not wait for a copy from pinned memory."""
    return structure.each(lambda part: on(part, device), item, lambda part: callable(getattr(part, "to", None)))


def on(part, device: torch.device):
    """Another object moves itself, as torch's PackedSequence, whose lengths stay on the CPU."""
    return part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part.to(device)


def in_float32(outputs):
    """Without their graph."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().float() if tensor.is_floating_point() else tensor.detach()

    return structure.each(convert, outputs)
