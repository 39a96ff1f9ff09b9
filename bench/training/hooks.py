"""Hooks that observe or disturb the steps of a training without being part of the loop.

``trainer.hooks`` lists them; in a plain run the list is empty. Deviations from a right script's decisions are in
``Script`` (script.py); torch's own hooks work on single tensors and modules.
"""

import os
import signal
import time

import torch

from bench.config.options import RunConfig
from bench.config.values import parse_fault
from bench.measure.memory import peak_rss_bytes
from bench.measure.nvml import GIB
from bench.process.heartbeat import Window


class Hook:
    """Override the needed methods. Every rank has the same hooks, as they may communicate. A step's time ends after
    ``after_optimizer``; the next two count towards the following step, unless the hook calls
    ``trainer.clock.resume()`` at its end."""

    def on_phase(self, name: str) -> None:
        """A phase begins: "waiting for data", "forward", "backward", "synchronize" or "optimizer step"."""

    def before_step(self) -> None:
        """The batch has been fetched; nothing is computed yet."""

    def after_prepare(self, inputs, prepared) -> None:
        """The batch is on the device. inputs: as fetched; prepared: as the model gets them."""

    def after_synchronize(self) -> None:
        """The gradients are final."""

    def after_optimizer(self, loss: torch.Tensor) -> None:
        """The optimizer's step was taken, or skipped. loss: of this rank, on the device."""

    def on_loss(self, step: int, loss: float) -> None:
        """The loss of a step is known without waiting for the device."""

    def on_window(self, step: int, window: Window) -> None:
        """The rates of the last second or so, up to this step, by the host's clock."""

    def after_step(self) -> None:
        """The step is counted in ``trainer.step``."""


# --- injected faults and overhead -------------------------------------------------------------------------------------


def injected_hooks(trainer) -> list[Hook]:
    config: RunConfig = trainer.config
    hooks = [Fault(trainer)] if config.fault else []
    hooks += [MemoryLimit(trainer)] if config.memory_gib and config.device == "cpu" else []
    return hooks + ([UnfairOverhead(trainer)] if config.item_sync or config.step_barrier else [])


class Fault(Hook):
    """INJECT=kind:rank:step: a broken rank, to show and test how it is handled."""

    def __init__(self, trainer):
        self.trainer, self.config = trainer, trainer.config
        self.kind, self.rank, self.step = parse_fault(self.config.fault, self.config.num_processes)

    def before_step(self) -> None:
        if (self.rank, self.step) == (self.trainer.mode.topology.rank, self.trainer.step):
            self.inject_fault()

    def inject_fault(self) -> None:
        if self.config.elastic and self.kind == "kill":  # only once, not in the replacement rank
            try:
                (self.trainer.run_dir / ".rank.killed").touch(exist_ok=False)
            except FileExistsError:
                return
        if self.kind == "raise":
            raise RuntimeError(f"broken on purpose: INJECT={self.config.fault}")
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.kind == "hang":
            time.sleep(1)


class MemoryLimit(Hook):
    """MEMORY_GIB on a CPU: the memory of each device that this process emulates. On a GPU torch's allocator has the
    limit (``build.join``)."""

    def __init__(self, trainer):
        self.given, self.devices = trainer.config.memory_gib, trainer.mode.topology.devices_per_process

    def on_phase(self, name: str) -> None:
        had = (peak_rss_bytes() or 0) / GIB
        if had > self.given * self.devices:
            many = f" for each of its {self.devices} devices" if self.devices > 1 else ""
            raise torch.OutOfMemoryError(f"this process had {had:.2f} GiB in memory, MEMORY_GIB={self.given:g}{many}")

    def after_step(self) -> None:
        self.on_phase("")


class UnfairOverhead(Hook):
    """INJECT=host-sync,barrier: overhead per step that some benchmarks add to only one mode. Never on in a fair
    comparison."""

    def __init__(self, trainer):
        self.mode, self.config = trainer.mode, trainer.config

    def after_optimizer(self, loss: torch.Tensor) -> None:
        if self.config.item_sync:
            loss.item()  # the host waits for the device
        if self.config.step_barrier:
            self.mode.barrier()
            for _ in range(3):  # loss, top-1, top-5
                self.mode.reduce(loss, "mean").item()
