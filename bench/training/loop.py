"""The only training loop there is. Every mode, launcher and workload goes through ``train_steps``."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.config import gpu_defaults
from bench.config.options import RunConfig
from bench.config.values import parse_schedule, parse_snapshots
from bench.errors import UserError
from bench.formulas import scaled_lr
from bench.measure.clock import LossPeek, StepClock
from bench.modes.base import Mode
from bench.process.heartbeat import StatusWriter
from bench.training.averages import Averages
from bench.training.hooks import Hook, injected_hooks
from bench.training.progress import Progress
from bench.training.schedule import learning_rate
from bench.training.script import Script
from bench.workload import batch


def build_optimizer(config: RunConfig, model: nn.Module, groups: list | None = None) -> torch.optim.Optimizer:
    """The config's optimizer over the trained parameters, or over ``groups``. Raises UserError for groups that torch
    rejects, and for FUSED=1 without a fused optimizer; a FUSED that was a GPU's default is then dropped."""
    parameters = [p for p in model.parameters() if p.requires_grad] if groups is None else groups
    options = {"lr": scaled_lr(config.lr, config.global_batch, config.lr_batch), "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        options |= {"momentum": config.momentum, "nesterov": config.nesterov}
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
    if config.fused:
        why = why_not_fused(make, model, options)
        if why and not gpu_defaults.chose_fused(config):
            raise UserError(f"FUSED=1: torch has no fused {config.optimizer} for this device ({why}): leave it out")
        options |= {} if why else {"fused": True}
    try:
        return make(parameters, **options)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"groups(model) returned groups that torch's optimizers do not accept: {error}") from None


def why_not_fused(make: Callable, model: nn.Module, options: dict) -> str:
    """Why torch has no fused optimizer (class ``make``) for parameters like the model's; "" if it has one."""
    tried = next(model.parameters()).detach().new_zeros(1).requires_grad_()
    tried.grad = torch.zeros_like(tried)
    try:
        make([tried], fused=True, **options).step()
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return ""


def learning_rates(config: RunConfig, num_images: int) -> Callable[[int], float]:
    """The function images seen -> learning rate. Raises UserError if the warm-up leaves no steps for the schedule."""
    steps = config.warmup_steps + config.timed_steps
    epochs = config.epochs or steps * config.global_batch / num_images
    warmup = config.lr_warmup_steps * config.global_batch or config.lr_warmup_epochs * num_images
    schedule, drops = parse_schedule(config.schedule)
    if warmup > epochs * num_images or (schedule == "cosine" and warmup == epochs * num_images):
        raise UserError(
            f"LR_WARMUP covers the whole run and leaves no steps for SCHEDULE={config.schedule}: use fewer steps"
        )
    lr = scaled_lr(config.lr, config.global_batch, config.lr_batch)
    return functools.partial(
        learning_rate, lr=lr, images_per_epoch=num_images, epochs=epochs, schedule=schedule, drops=drops,
        schedule_epochs=config.schedule_epochs, schedule_factor=config.schedule_factor, lr_warmup_images=warmup,
    )  # fmt: skip


def start_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Set the momenta of a fused SGD under a loss scaler to zero: if the first step is skipped, torch 2.14 continues
    with uninitialised memory."""
    for group in optimizer.param_groups:
        if group.get("momentum"):
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def set_precision(config: RunConfig) -> contextlib.AbstractContextManager:
    """Set TF32 and cuDNN's search on or off, for every mode; return the context of the forward pass."""
    torch.backends.cudnn.benchmark = bool(config.cudnn_benchmark)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    short = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    return torch.autocast(config.device, dtype=short or torch.bfloat16, enabled=short is not None)


class Trainer:
    """One process's wrapped model and optimizer, and the state of the loop. lr_of: images seen -> learning rate.
    ``count_left_out`` before reading skipped_steps or loss_steps."""

    left_out = None  # whether a fused optimizer skipped the last step, on the device

    def __init__(
        self, config: RunConfig, mode: Mode, model: nn.Module, optimizer: torch.optim.Optimizer,
        lr_of: Callable[[int], float], status: StatusWriter, run_dir: Path, script: Script,
    ):  # fmt: skip
        self.config, self.mode, self.model, self.optimizer = config, mode, model, optimizer
        self.lr_of, self.status, self.run_dir = lr_of, status, run_dir
        self.script, self.workload = script, script.workload
        self.device = mode.topology.device
        self.clock = StepClock(self.device, passes=config.accumulate)
        self.peek = LossPeek(self.device)
        self.autocast = set_precision(config)
        # Gradients below 6e-8 are zero in fp16: the loss is scaled, and the gradients are unscaled before the step.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.stepped = False  # whether the optimizer was called in this step
        self.one = torch.ones((), device=self.device)
        self.uncounted = torch.zeros((), dtype=torch.long, device=self.device)  # steps skipped on the device
        if self.scaler.is_enabled():
            optimizer.register_step_post_hook(self.note_step)
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                start_momenta(optimizer)
        self.guard = LossGuard(config.loss_guard) if config.loss_guard else None
        self.averages = Averages(config, mode, model) if config.ema or config.swa else None
        self.snapshots = parse_snapshots(config.snapshots) if config.snapshots else []
        self.hooks: list[Hook] = injected_hooks(self)
        rank = mode.topology.rank if mode.topology.world_size > 1 else None
        self.progress = Progress(config, status, self.device, rank)
        self.step = self.skipped_steps = 0
        self.images_seen = 0  # over all processes
        self.notes: list[str] = []  # for the record
        self.skipped_images = set()  # names of images that this process could not read
        self.loss_sum = torch.zeros((), device=self.device)  # of the epoch's steps, without skipped ones
        self.loss_steps = 0  # their number
        # The epoch so far: the sum of the losses, that of each metric, the number of examples.
        self.counts = torch.zeros(2 + len(self.workload.info.metrics), device=self.device) if config.epochs else None

    def train_steps(self, batches, count: int) -> None:
        """Take ``count`` steps from an iterator of (inputs [b, …], targets [b, …], unreadable names). Only LOSS_GUARD,
        and PRECISION=fp16 with a non-fused optimizer, wait for the device (``update``)."""
        for _ in range(count):
            self.status.step(self.step)
            self.tell_phase("waiting for data")
            asked = time.perf_counter()
            inputs, targets, unreadable = next(batches)
            waited = time.perf_counter() - asked
            self.skipped_images.update(unreadable)
            self.call_hooks("before_step")

            loss = self.take_step(self.prepare(inputs), batch.moved(targets, self.device))
            self.call_hooks("after_optimizer", loss)
            self.clock.step_done(waited)
            if (known := self.peek.offer(loss)) is not None:
                self.status.loss(known)
                self.progress.loss = known
                self.call_hooks("on_loss", self.step, known)
            self.step += 1
            self.images_seen += self.config.global_batch
            lr = self.optimizer.param_groups[0]["lr"]
            if window := self.progress.step_done(self.step, waited, lr, self.images_seen):
                self.call_hooks("on_window", self.step, window)
            if self.step in self.snapshots:
                self.save_snapshot()
            self.call_hooks("after_step")

    def prepare(self, inputs):
        """The inputs on the device, as the model gets them. A method, so that no variable of the loop holds them."""
        prepared = self.workload.prepare(inputs)
        self.call_hooks("after_prepare", inputs, prepared)
        return prepared

    def take_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One step on this process's inputs [b, …] and targets [b, …]; returns the loss, a mean over them.

        With ACCUMULATE=k the batch is split into k passes, and gradients are exchanged only in the last one. A pass has
        the mean loss over a k-th of the batch, so it is divided by k, and the gradients of the passes add up.
        """
        passes = self.config.accumulate
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr_of(self.images_seen) * group.get("lr_factor", 1)
        self.begin("forward", after="start")
        self.optimizer.zero_grad()
        total = 0.0
        parts = zip(batch.chunks(inputs, passes), batch.chunks(targets, passes), strict=True)
        for number, (some, theirs) in enumerate(parts, 1):
            last = number == passes
            with contextlib.nullcontext() if last and self.config.sync else self.mode.no_sync(self.model):
                if last and passes > 1:
                    self.begin("forward", after="passes before")
                with self.autocast:
                    outputs, loss = self.script.forward(self.model, some, theirs)  # outputs: [b / passes, …]
                    loss = loss / passes
                if self.counts is not None:  # on the device: no wait
                    self.counts += self.counted(batch.in_float32(outputs), theirs)
                if last:
                    self.begin("backward", after="forward")
                self.scaler.scale(loss).backward()
            total = total + loss.detach()
        self.begin("synchronize", after="backward")
        self.mode.synchronize(self.optimizer)
        self.call_hooks("after_synchronize")
        self.begin("optimizer step", after="synchronize")
        if self.update(total):
            self.add_loss(total)
            if self.averages:
                self.averages.step_taken()  # part of the training, so of the step's time
        self.clock.phase_done("optimizer")
        return total

    @torch.no_grad()
    def counted(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[2 + metrics]: the sum of the losses, that of each metric, and the examples."""
        counts = self.workload.count(outputs, targets)
        return torch.cat([counts, counts.new_full((1,), batch.length(targets))])

    def update(self, loss: torch.Tensor) -> bool:
        """The optimizer's step with final gradients, unless the guard or the scaler skips it: both use values that are
        equal on all ranks, so all ranks skip together. Returns whether it was taken, as far as the host knows."""
        if self.guard and not self.guard.accepts(self.mode.reduce(loss.nan_to_num(nan=math.inf), "max").item()):
            self.skipped_steps += 1
            return False
        if self.config.clip_norm:
            self.scaler.unscale_(self.optimizer)
            trained = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, self.config.clip_norm)
        self.stepped = False
        self.mode.step(self.optimizer, self.scaler)
        if self.scaler.is_enabled() and not self.scaler_stepped():
            self.skipped_steps += 1
            return False
        return True

    def add_loss(self, loss: torch.Tensor) -> None:
        self.loss_sum += loss if self.left_out is None else loss.masked_fill(self.left_out, 0)
        self.loss_steps += 1

    def count_left_out(self) -> None:
        """Count the steps skipped on the device; waits for it. Call it before reading skipped_steps or loss_steps."""
        left = int(self.uncounted)
        self.skipped_steps, self.loss_steps = self.skipped_steps + left, self.loss_steps - left
        self.uncounted.zero_()

    def note_step(self, *_) -> None:
        self.stepped = True

    def scaler_stepped(self) -> bool:
        """Whether fp16's scaler took the step, as far as the host knows; it skips non-finite gradients.

        torch's scaler waits for the device and then calls the optimizer or not. A fused optimizer is always called and
        skips the step on the device. A smaller scale shows this, and the host reads it only for averages.
        """
        if not getattr(self.optimizer, "_step_supports_amp_scaling", False):
            self.scaler.update()
            return self.stepped
        before = self.scaler.scale(self.one)
        self.scaler.update()
        left_out = self.scaler.scale(self.one) < before
        if self.averages:
            return not left_out.item()
        self.left_out = left_out
        self.uncounted += left_out
        return True

    def begin(self, phase: str, after: str) -> None:
        self.clock.phase_done(after)
        self.tell_phase(phase)

    def tell_phase(self, name: str) -> None:
        self.status.phase(name)
        self.call_hooks("on_phase", name)

    def call_hooks(self, method: str, *arguments) -> None:
        for hook in self.hooks:
            getattr(hook, method)(*arguments)

    @contextlib.contextmanager
    def hooked(self, hook: Hook) -> Iterator[None]:
        self.hooks.append(hook)
        try:
            yield
        finally:
            self.hooks.remove(hook)

    def save_snapshot(self) -> None:
        """Write this rank's buffers, and from rank 0 its parameters, to RUN_DIR/rank<r>-step<n>.npz."""
        rank, whole = self.mode.topology.rank, self.mode.full_state(self.model)
        buffers = dict(self.mode.unwrap(self.model).named_buffers())
        tensors = whole if rank == 0 else {name: whole[name] for name in buffers if name in whole}
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        np.savez(self.run_dir / f"rank{rank}-step{self.step}.npz", **arrays)


class LossGuard:
    """LOSS_GUARD=f: skip a step whose loss is not finite, or above f times the running mean of the accepted ones.
    It gets the largest loss of any rank, so that all skip together: a reduction and a wait for the device per step."""

    def __init__(self, factor: float):
        self.factor = factor
        self.mean = None  # of the accepted losses: the newest has weight 0.1

    def accepts(self, loss: float) -> bool:
        if not math.isfinite(loss) or (self.mean is not None and loss > self.factor * self.mean):
            return False
        self.mean = loss if self.mean is None else 0.9 * self.mean + 0.1 * loss
        return True
