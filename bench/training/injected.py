"""Hooks that do harm on purpose: a broken rank (FAULT), and overhead that no fair comparison has (ITEM_SYNC,
STEP_BARRIER)."""

import os
import signal
import time

import torch

from bench.config.options import RunConfig
from bench.config.values import parse_fault
from bench.training.hooks import Hook


def injected_hooks(trainer) -> list[Hook]:
    """Those that the config asks for; none in a plain run."""
    config: RunConfig = trainer.config
    hooks = [Fault(trainer)] if config.fault else []
    return hooks + ([UnfairOverhead(trainer)] if config.item_sync or config.step_barrier else [])


class Fault(Hook):
    """FAULT=kind:rank:step: what a broken rank looks like, so that its handling can be seen and tested."""

    def __init__(self, trainer):
        self.trainer, self.config = trainer, trainer.config
        self.kind, self.rank, self.step = parse_fault(self.config.fault, self.config.num_processes)

    def before_step(self) -> None:
        if (self.rank, self.step) == (self.trainer.mode.topology.rank, self.trainer.step):
            self.inject_fault()

    def inject_fault(self) -> None:
        """Raise, die or hang."""
        if self.config.elastic and self.kind == "kill":  # once, and not the one that is started in its place
            try:
                (self.trainer.run_dir / ".rank.killed").touch(exist_ok=False)
            except FileExistsError:
                return
        if self.kind == "raise":
            raise RuntimeError(f"broken on purpose: FAULT={self.config.fault}")
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.kind == "hang":
            time.sleep(1)


class UnfairOverhead(Hook):
    """What some benchmarks let one mode pay every step, to be studied: never on in a fair comparison."""

    def __init__(self, trainer):
        self.mode, self.config = trainer.mode, trainer.config

    def after_optimizer(self, loss: torch.Tensor) -> None:
        if self.config.item_sync:
            loss.item()  # the host waits for the device
        if self.config.step_barrier:
            self.mode.barrier()
            for _ in range(3):  # loss, top-1, top-5
                self.mode.reduce(loss, "mean").item()
