"""What a trainer's tensors are for: the kinds of `bench/measure/memory_parts.py`, read from the live objects."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import torch

from bench.measure.memory_parts import Note
from bench.structure import tensors


def holdings(trainer, train_set=None) -> Iterator[tuple[str, torch.Tensor]]:
    """(kind, tensor) of all that stays between two steps and is known; of two that share memory the first counts."""
    plain = trainer.mode.unwrap(trainer.model)
    for parameter in plain.parameters():
        yield "weights", local(parameter)
        if parameter.grad is not None:
            yield "gradients", local(parameter.grad)
    yield from (("buffers", buffer) for buffer in plain.buffers())
    for state in trainer.mode.state_of(trainer.optimizer).values():
        yield from (("optimizer state", local(value)) for value in state.values() if torch.is_tensor(value))
    for replica in getattr(trainer.model, "shells", ()):  # the CPU's DataParallel keeps them until the next step
        yield from (("replicas", tensor) for tensor in tensors_of(replica))
    for averaged in trainer.averages.models.values() if trainer.averages else ():
        yield from (("averages", tensor) for tensor in tensors_of(averaged))
    if getattr(train_set, "bytes_on_device", 0):
        yield from (("data", tensor) for tensor in (train_set.images, train_set.labels))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: its part of one that is sharded, any other whole."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def tensors_of(model) -> Iterator[torch.Tensor]:
    """Parameters and buffers of a module, and what stands in their place in a replica."""
    for module in model.modules():
        yield from (tensor for tensor in module._parameters.values() if tensor is not None)
        yield from (tensor for tensor in module._buffers.values() if tensor is not None)


@contextlib.contextmanager
def replaced(owner, name: str, function: Callable) -> Iterator[None]:
    """Within it a method of an object is another function; afterwards it is what it was, the object's own or its
    class's."""
    own = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)
        if own is not None:
            setattr(owner, name, own)


@contextlib.contextmanager
def notes_of(trainer, address_of: Callable[[torch.Tensor], int]) -> Iterator[list[Note]]:
    """What is there during a step alone: the batch, the replicas of nn.DataParallel, and of FSDP's blocks the whole
    weights and the pieces that travel."""
    noted, prepare, model = [], trainer.workload.prepare, trainer.model
    apply, undo = getattr(model, "parallel_apply", None), contextlib.ExitStack()

    def note(kind: str, tensors) -> None:
        noted.extend(Note(kind, address_of(tensor), time.time_ns()) for tensor in tensors)

    def preparing(inputs: torch.Tensor) -> torch.Tensor:
        batch = prepare(inputs)
        note("images", tensors((inputs, batch)))
        return batch

    def gathered(block, *_) -> None:
        whole = [p for p in block.parameters() if local(p) is p]
        note("gathered", whole)
        for parameter in whole:  # backward gathers it anew, elsewhere
            if parameter.requires_grad:
                undo.callback(parameter.register_hook(lambda _, p=parameter: note("gathered", [p])).remove)

    def applying(replicas, inputs, options):
        for replica in replicas[1:]:
            note("replicas", tensors_of(replica))
        note("images", tensors((inputs, options)))
        return apply(replicas, inputs, options)

    with undo:
        undo.enter_context(replaced(trainer.workload, "prepare", preparing))
        if isinstance(model, torch.nn.DataParallel):
            undo.enter_context(replaced(model, "parallel_apply", applying))
        if fsdp := sys.modules.get("torch.distributed.fsdp"):
            for module in model.modules():
                if isinstance(module, fsdp.FSDPModule):
                    undo.callback(module.register_forward_pre_hook(gathered).remove)
            trainer.mode.note_pieces(lambda tensor: note("gathered", [tensor]))
        yield noted
