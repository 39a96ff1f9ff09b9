"""ACTIVATION_CHECKPOINTING=1: a block keeps only its input for the backward pass, which computes the block again."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.errors import UserError
from bench.structure import blocks_of


class Recomputed:
    """A base class of a block that was put before its own class: names, copies and hooks of the module stay."""

    recomputed = True

    def forward(self, *args, **kwargs):
        if not torch.is_grad_enabled() or not self.recomputed:
            return super().forward(*args, **kwargs)
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
        calls = 0

        def compute(*args, **kwargs):
            nonlocal calls
            calls += 1
            with with_buffers(self, buffers) if calls > 1 else contextlib.nullcontext():
                return super(Recomputed, self).forward(*args, **kwargs)

        return checkpoint(compute, *args, use_reentrant=False, **kwargs)


@contextlib.contextmanager
def with_buffers(module: nn.Module, values: dict[str, torch.Tensor]) -> Iterator[None]:
    """Other buffers for a while: those before the first computation. So batch norm's running statistics are updated
    once, and a module that reads its buffers computes the same again."""
    own = dict(module.named_buffers())
    try:
        put(module, values)
        yield
    finally:
        put(module, own)


def put(module: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    for name, value in buffers.items():
        path, _, last = name.rpartition(".")
        module.get_submodule(path)._buffers[last] = value


def checkpoint_blocks(model: nn.Module, name: str) -> None:
    """Recompute the blocks of a model (``blocks_of``) in its backward pass. Of a single layer nothing would be saved:
    its input is kept in any case. Raises UserError for a model without blocks of several layers. name: of the model."""
    blocks = [block for _, block in blocks_of(model) if not is_one_layer(block)]
    if not blocks:
        raise UserError(
            f"ACTIVATION_CHECKPOINTING=1: MODEL={name} has no blocks of several layers in an nn.Sequential or "
            "nn.ModuleList: put its layers into such blocks, or leave it out"
        )
    for block in blocks:
        kind = type(block)
        block.__class__ = type(kind.__name__, (Recomputed, kind), {"__module__": kind.__module__})


def is_one_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and next(module.children(), None) is None
