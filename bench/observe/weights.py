"""Weights and buffers of the replicas: whether they are the same on all ranks, at the start and at the end."""

import hashlib
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from bench.observe.probe import Probe
from bench.observe.together import columns


def hash_of(pieces: Iterable[bytes]) -> str:
    """sha256 of bytes in pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def tensors_hash(tensors: Iterable[torch.Tensor]) -> str:
    """sha256 of all tensors' bytes, in order."""
    return hash_of(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def state_of(model: nn.Module, whole: dict[str, torch.Tensor] | None = None) -> dict[str, str]:
    """Parameters and buffers as hashes: two replicas agree when these agree. whole: name -> the whole tensor, where the
    model holds a part of it."""
    whole = whole or {}
    parameters = (whole.get(name, tensor) for name, tensor in model.named_parameters())
    buffers = (whole.get(name, tensor) for name, tensor in model.named_buffers())
    return {"parameters": tensors_hash(parameters), "buffers": tensors_hash(buffers)}


class Weights(Probe):
    """Hashes of the model before the first step and at the end."""

    joins: ClassVar = {"start": columns, "end": columns}
    begun = None

    def begin(self, loader) -> None:
        self.begun = state_of(self.watch.model)

    def part(self) -> dict:
        return {"start": self.begun, "end": state_of(self.watch.model)} if self.begun else {}
