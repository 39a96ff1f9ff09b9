"""What a trainer's tensors are for: the kinds of `bench/measure/memory_parts.py`, read from the live objects."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import torch

from bench.measure.memory_parts import Note
from bench.structure import module_tensors, tensors
from bench.training.hooks import Hook
from bench.training.loop import Trainer


def holdings(trainer: Trainer, train_set=None) -> Iterator[tuple[str, torch.Tensor]]:
    """(kind, tensor) of all that stays between two steps and is known; of two that share memory the first counts."""
    plain = trainer.mode.unwrap(trainer.model)
    for parameter in plain.parameters():
        yield "weights", local(parameter)
        if parameter.grad is not None:
            yield "gradients", local(parameter.grad)
    yield from (("buffers", buffer) for buffer in plain.buffers())
    for state in trainer.mode.state_of(trainer.optimizer).values():
        yield from (("optimizer state", local(value)) for value in state.values() if torch.is_tensor(value))
    for replica in trainer.mode.kept_replicas(trainer.model):
        yield from (("replicas", tensor) for tensor in module_tensors(replica))
    for averaged in trainer.averages.models.values() if trainer.averages else ():
        yield from (("averages", tensor) for tensor in module_tensors(averaged))
    if getattr(train_set, "bytes_on_device", 0):
        yield from (("data", tensor) for tensor in (train_set.images, train_set.labels))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@contextlib.contextmanager
def notes_of(trainer: Trainer, address_of: Callable[[torch.Tensor], int]) -> Iterator[list[Note]]:
    """What exists only during a step: the batch, and what the mode holds."""
    noted, batches = [], Hook()

    def note(kind: str, tensors: Iterable[torch.Tensor]) -> None:
        noted.extend(Note(kind, address_of(tensor), time.time_ns()) for tensor in tensors)

    batches.after_prepare = lambda inputs, prepared: note("images", tensors((inputs, prepared)))
    with trainer.hooked(batches), trainer.mode.step_only_tensors(trainer.model, note):
        yield noted
