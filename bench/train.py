"""The only training loop there is. Every mode, launcher and workload goes through ``train_steps``."""

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.checks import parse_fault, parse_snapshots
from bench.config import RunConfig
from bench.measure.clock import LossPeek, StepClock
from bench.progress import StatusWriter


def build_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The config's optimizer over the model's parameters."""
    options = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=config.momentum, **options)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer](model.parameters(), **options)


def set_precision(config: RunConfig) -> contextlib.AbstractContextManager:
    """Set TF32 on or off, the same for every mode; return the context in which the forward pass runs."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    return torch.autocast(config.device, dtype=torch.bfloat16, enabled=config.precision == "bf16")


class Trainer:
    """One process's model, optimizer and loop state. ``mode`` is open; ``model`` and ``optimizer`` are wrapped."""

    def __init__(self, config: RunConfig, mode, model: nn.Module, optimizer, status: StatusWriter, run_dir: Path):
        self.config, self.mode, self.model, self.optimizer, self.status = (
            config,
            mode,
            model,
            optimizer,
            status,
        )
        self.device = mode.topology.device
        self.clock = StepClock(self.device)
        self.peek = LossPeek(self.device)
        self.autocast = set_precision(config)
        self.fault = parse_fault(config.fault, config.num_processes) if config.fault else None
        self.snapshots = parse_snapshots(config.snapshots) if config.snapshots else []
        self.run_dir = run_dir
        self.step = 0

    def train_steps(self, batches, count: int) -> None:
        """Take ``count`` steps from an iterator of (images [b, 3, H, W], labels [b]), never waiting for the device."""
        for _ in range(count):
            self.status.step(self.step)
            self.status.phase("waiting for data")
            asked = time.perf_counter()
            images, labels = next(batches)
            waited = time.perf_counter() - asked
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            if self.fault:
                self.break_on_purpose()

            loss = self.take_step(images, labels)
            if self.config.item_sync or self.config.step_barrier:
                self.be_unfair(loss)
            self.clock.step_done(waited)
            known = self.peek.offer(loss)
            if known is not None:
                self.status.loss(known)
            self.step += 1
            if self.step in self.snapshots:
                self.save_snapshot()

    def take_step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step on this process's images [b, 3, H, W] and labels [b]; returns the loss, a mean over them."""
        exchange = contextlib.nullcontext() if self.config.sync else self.mode.no_sync(self.model)
        self.begin("forward", after="start")
        self.optimizer.zero_grad()
        with exchange:
            with self.autocast:
                outputs = self.model(images)  # [b, classes]
                loss = nn.functional.cross_entropy(outputs, labels)
            self.begin("backward", after="forward")
            loss.backward()
        self.begin("synchronize", after="backward")
        self.mode.synchronize(self.optimizer)
        self.begin("optimizer step", after="synchronize")
        self.mode.step(self.optimizer)
        self.clock.phase_done("optimizer")
        return loss.detach()

    def begin(self, phase: str, after: str) -> None:
        """A phase of the step begins, and the one before it ends: for the clock, and for whoever watches the run."""
        self.clock.phase_done(after)
        self.status.phase(phase)

    def be_unfair(self, loss: torch.Tensor) -> None:
        """What some benchmarks let one mode pay every step, to be studied: never on in a fair comparison."""
        if self.config.item_sync:
            loss.item()  # the host waits for the device
        if self.config.step_barrier:
            self.mode.barrier()
            for _ in range(3):  # loss, top-1, top-5
                self.mode.reduce(loss, "mean").item()

    @torch.no_grad()
    def validate(self, dataset) -> dict:
        """Top-1 and top-5 accuracy over a held-out set: each process counts its share, and the COUNTS are summed.

        Rank r takes images r, r + N, r + 2N, …: none twice, none left out, whatever the sizes. It runs on the plain
        model, for shares may differ by one batch and DDP's forward is a collective.
        """
        self.status.phase("validating")
        topology, model = self.mode.topology, self.mode.unwrap(self.model)
        model.eval()
        counts = torch.zeros(3, dtype=torch.float64, device=self.device)  # top-1, top-5, images
        mine = torch.arange(topology.rank, len(dataset), topology.world_size)
        for indices in mine.split(self.config.per_device_batch):
            images, labels = (t.to(self.device) for t in dataset[indices.numpy()])
            with self.autocast:
                top5 = model(images).topk(5).indices  # [b, 5]
            hits = top5 == labels[:, None]
            counts += torch.stack([hits[:, 0].sum(), hits.sum(), torch.tensor(len(labels), device=self.device)])
        model.train()
        top1, top5, images = self.mode.reduce(counts, "sum").tolist()
        return {"top1": top1 / images, "top5": top5 / images, "images": int(images)}

    def save_snapshot(self) -> None:
        """Write this rank's buffers, and from rank 0 its parameters, to RUN_DIR/rank<r>-step<n>.npz."""
        model, rank = self.mode.unwrap(self.model), self.mode.topology.rank
        tensors = dict(model.named_buffers()) | (dict(model.named_parameters()) if rank == 0 else {})
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        np.savez(self.run_dir / f"rank{rank}-step{self.step}.npz", **arrays)

    def break_on_purpose(self) -> None:
        """FAULT=kind:rank:step: what a broken rank looks like, so that its handling can be seen and tested."""
        kind, rank, step = self.fault
        if (rank, step) != (self.mode.topology.rank, self.step):
            return
        if kind == "raise":
            raise RuntimeError(f"broken on purpose: FAULT={self.config.fault}")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while kind == "hang":
            time.sleep(1)
