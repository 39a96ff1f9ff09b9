"""EMA and SWA: averages of the trained model's weights, by torch's ``AveragedModel``.

- EMA=0.999: after every step that is taken, average = 0.999 x average + 0.001 x weights, batch norm's buffers included;
  the first step copies them.
- SWA=n: the plain mean of the weights after epoch n and each later one (Izmailov et al. 2018,
  https://arxiv.org/abs/1803.05407). Batch norm's statistics do not match these weights, so they are re-estimated by
  ``update_bn`` on the training images of one epoch.

Every rank keeps its own averages, without communication: replicas with equal weights have equal averages.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from bench.config.options import RunConfig
from bench.config.sections import AVERAGES
from bench.errors import UserError
from bench.modes.base import Mode
from bench.workload import batch
from bench.workload.loader import plain_errors


class Averages:
    """The averages of one run, ``models``: name -> AveragedModel. model: the wrapped one, whose replicas are equal.
    Raises UserError if no rank holds all weights, or if SWA would change frozen statistics."""

    def __init__(self, config: RunConfig, mode: Mode, model: nn.Module):
        if not mode.replicated:
            raise UserError(f"MODE={config.mode} shards the weights over the ranks: leave EMA and SWA out")
        self.config, self.mode, self.plain, self.models = config, mode, mode.unwrap(model), {}
        self.numbers, self.counters = [], []
        if config.ema:
            ema = AveragedModel(self.plain, multi_avg_fn=get_ema_multi_avg_fn(config.ema), use_buffers=True)
            self.models["ema"] = ema
            self.numbers, self.counters = pairs(ema.module, self.plain)
        if config.swa:
            check_norms(self.plain)
            self.models["swa"] = AveragedModel(self.plain)
        self.eval_models = {name: mode.on_all_devices(averaged.module) for name, averaged in self.models.items()}

    def step_taken(self) -> None:
        """After an optimizer's step. The arithmetic is torch's, but ``AveragedModel.update_parameters`` would wait for
        the device at every step, to copy a counter that an exponential average does not need."""
        if "ema" not in self.models:
            return
        ema = self.models["ema"]
        with torch.no_grad():
            for averaged, trained in self.numbers:
                if ema.n_averaged:  # on the CPU
                    ema.multi_avg_fn(averaged, trained, None)
                else:
                    torch._foreach_copy_(averaged, trained)
            for averaged, trained in self.counters:
                torch._foreach_copy_(averaged, trained)
        ema.n_averaged += 1

    def epoch_ended(self, trainer, epoch: int, examples: Iterable) -> None:
        """After an epoch, counted from 1. examples: this rank's training batches of one epoch. Every rank calls it."""
        if "swa" in self.models and epoch >= self.config.swa:
            self.models["swa"].update_parameters(self.plain)
            gpus = [device for device in self.mode.topology.devices if device.type == "cuda"]
            with torch.random.fork_rng(devices=gpus), trainer.autocast:  # dropout must not change the training's state
                estimate_statistics(self.mode, self.models["swa"].module, forward_passes(trainer, examples))

    def ready(self) -> dict[str, nn.Module]:
        """Name -> model for a validation, without empty averages."""
        return {name: self.eval_models[name] for name, averaged in self.models.items() if averaged.n_averaged}

    def state(self) -> dict[str, dict]:
        return {name: averaged.state_dict() for name, averaged in self.models.items()}

    def buffers(self) -> dict[str, dict[str, torch.Tensor]]:
        return {name: dict(averaged.module.named_buffers()) for name, averaged in self.models.items()}

    def load(self, state: dict, buffers: dict | None) -> Iterator[str]:
        """From a checkpoint. buffers: this rank's own, if any. Yields a note for each average that restarts."""
        for name, averaged in self.models.items():
            if name not in state:
                yield f"{name.upper()} starts here: the checkpoint does not contain it"
                continue
            averaged.load_state_dict(state[name])
            for key, buffer in averaged.module.named_buffers():
                if buffers:
                    buffer.copy_(buffers[name][key])


def stored(mode: Mode, model: nn.Module, state: dict) -> dict[str, nn.Module]:
    """The averages in a checkpoint: name -> model for a validation. model: the wrapped one."""
    found = {}
    for name in AVERAGES:
        if name in state and state[name]["n_averaged"]:
            averaged = AveragedModel(mode.unwrap(model))
            averaged.load_state_dict(state[name])
            found[name] = mode.on_all_devices(averaged.module)
    return found


def check_norms(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not any(p.requires_grad for p in module.parameters()):
            raise UserError(f"SWA re-estimates batch norm statistics, but {name} is frozen: leave SWA or "
                            "FREEZE out")  # fmt: skip


def pairs(averaged: nn.Module, trained: nn.Module) -> tuple[list, list]:
    """The tensors of two equal models as ([averaged, …], [trained, …]), once for the floats to average and once for the
    integers, which count batches."""
    groups = {}
    theirs = itertools.chain(trained.parameters(), trained.buffers())
    for a, b in zip(itertools.chain(averaged.parameters(), averaged.buffers()), theirs, strict=True):
        group = groups.setdefault(a.dtype, ([], []))
        group[0].append(a.detach())
        group[1].append(b.detach())
    numbers = [group for dtype, group in groups.items() if dtype.is_floating_point]
    return numbers, [group for dtype, group in groups.items() if not dtype.is_floating_point]


def forward_passes(trainer, batches: Iterable) -> Iterator[tuple]:
    """A forward pass on each of this process's training batches, as (function of the model,). Each takes one device's
    part, so that one process on several devices uses the same parts as one process per device."""
    workload, size = trainer.workload, trainer.config.per_device_batch
    for inputs, targets, _ in plain_errors(iter(batches)):
        trainer.status.phase("validating")
        for some, theirs in zip(batch.split(inputs, size), batch.split(targets, size), strict=True):
            arguments = workload.prepare(some), batch.moved(theirs, trainer.device)
            yield (lambda model, arguments=arguments: workload.forward(model, *arguments),)


class Passes(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, forward_pass: Callable):
        return forward_pass(self.model)


@torch.no_grad()
def estimate_statistics(mode: Mode, model: nn.Module, passes: Iterable) -> bool:
    """Re-estimate batch norm's running statistics by ``update_bn``: the plain mean over batches. Each rank takes its
    share of the batches, of equal size. passes: see ``forward_passes``. Returns whether there is a batch norm."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    update_bn(passes, Passes(model))
    for norm in norms:
        for buffer in (norm.running_mean, norm.running_var):
            buffer.copy_(mode.reduce(buffer, "mean"))
    return bool(norms)
