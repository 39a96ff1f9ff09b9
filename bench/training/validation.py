"""Validation: the mean loss and the workload's metrics over the validation set, on one rank or on all."""

import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from bench.errors import UserError
from bench.process.heartbeat import VALIDATING
from bench.training.loop import Trainer
from bench.workload import batch
from bench.workload.freezing import train_mode
from bench.workload.loader import plain_errors


@torch.no_grad()
def validate(trainer: Trainer, batches: Iterable, judged: nn.Module | None = None) -> dict:
    """Each process counts its share of the validation set, and the COUNTS are summed over the ranks. A share is never
    padded, so no example counts twice. Batch norm's statistics may differ by rank; rank 0's are validated, as in a
    checkpoint. judged: the model to call instead of the trained one (``Mode.eval_model``)."""
    trainer.status.phase(VALIDATING)
    mode, model = trainer.mode, trainer.mode.eval_model(trainer.model) if judged is None else judged
    own = to_cpu(dict(model.named_buffers()))
    load_buffers(model, mode.gather(own)[0])
    counts = count(trainer, batches, model)
    load_buffers(model, own)
    found = means(trainer, trainer.script.sum_counts(counts))
    if not found["images"]:
        raise UserError("no example of the validation set can be read: repair the files")
    return found


def validate_averages(trainer: Trainer, batches: Iterable, judged: dict[str, nn.Module]) -> dict:
    """``validate`` for each average of the weights, as ``ema_loss``, ``ema_top1``, … judged: name -> model to call."""
    row = {}
    for name, model in judged.items():
        found = validate(trainer, batches, model)
        row |= {f"{name}_{key}": value for key, value in found.items() if key != "images"}
    return row


def validate_replica(trainer: Trainer, batches: Iterable) -> dict:
    """Loss and metrics of this process's model with its own buffers, on its own batches; no other rank takes part."""
    return means(trainer, count(trainer, batches, trainer.mode.eval_model(trainer.model)))


def means(trainer: Trainer, counts: torch.Tensor) -> dict:
    loss, *sums, examples = counts.tolist()
    metrics = zip(trainer.workload.info.metrics, sums, strict=True)
    metrics = {metric.key: finite(x / max(1, examples)) for metric, x in metrics}
    return {"loss": finite(loss / max(1, examples)), **metrics, "images": int(examples)}


@torch.no_grad()
def count(trainer: Trainer, batches: Iterable, model: nn.Module) -> torch.Tensor:
    """[2 + metrics]: the sum of the losses, that of each metric, and the number of examples."""
    workload = trainer.workload
    model.eval()
    counts = torch.zeros(2 + len(workload.info.metrics), dtype=torch.float64, device=trainer.device)
    for inputs, targets in forwards(trainer, batches):
        with trainer.autocast:
            targets = batch.moved(targets, trainer.device)
            outputs = batch.in_float32(workload.forward(model, workload.prepare(inputs), targets))
        if targets is not None:
            counts += trainer.counted(outputs, targets)
    train_mode(model)
    return counts


def forwards(trainer: Trainer, batches: Iterable) -> Iterator[tuple]:
    """(inputs, targets) of each forward pass. If that is a collective (``Mode.collective_forward``) all ranks must take
    the same number: a rank with fewer batches, or no readable example, takes a blank example with targets None."""
    mode, blank, most = trainer.mode, (trainer.workload.blank(), None), 0
    if mode.collective_forward:  # before the first pass: ranks that meet in one must not reduce meanwhile
        most = int(mode.reduce(torch.tensor(float(len(batches)), device=trainer.device), "max"))
    trainer.progress.validation_starts(trainer.images_seen, len(batches))
    for number, (inputs, targets, unreadable) in enumerate(plain_errors(iter(batches)), 1):
        trainer.status.phase(VALIDATING)
        trainer.skipped_images.update(unreadable)
        if batch.length(targets):
            yield inputs, targets
        elif mode.collective_forward:
            yield blank
        trainer.progress.batch_validated(trainer.images_seen, number, len(batches))
    yield from itertools.repeat(blank, most - len(batches))


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()
def load_buffers(model: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def to_cpu(item):
    return {k: to_cpu(v) for k, v in item.items()} if isinstance(item, dict) else item.detach().cpu().clone()
