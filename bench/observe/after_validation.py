"""Validations of which each rank has a share: do the ranks send each other anything before the training goes on?"""

import contextlib
import sys
from typing import ClassVar

from torch.nn.parallel import DistributedDataParallel

from bench.observe.gradients import sequence
from bench.observe.listening import BEGINS, ENDS
from bench.observe.probe import Probe

HOROVODS = ("_allreduce_async", "_grouped_allreduce_async", "_allgather_async", "_broadcast_async", "_alltoall_async")


class AfterValidation(Probe):
    """Collectives from the first batch of a validation to the next epoch that trains, or to the end. Buffers that a
    DistributedDataParallel broadcasts in its forward are none of the script's, and do not count."""

    joins: ClassVar = {"validated": lambda parts: {key: min(part[key] for part in parts) for key in parts[0]}}
    silent: ClassVar = {"validated": "no epoch without training was seen to its end"}

    def __init__(self, watch):
        super().__init__(watch)
        self.last = None
        self.pending, self.sent, self.until_now = False, False, False
        self.verdicts = []  # of each validation, whether something was sent

    def follow(self, model, optimizer) -> None:
        self.close()
        self.listen(DistributedDataParallel, BEGINS, self.pass_begins)
        self.listen(DistributedDataParallel, ENDS, self.pass_ends)
        operations = sys.modules.get("horovod.torch.mpi_ops")
        for name in HOROVODS if operations else ():
            with contextlib.suppress(AttributeError):
                self.listen(operations, name, self.horovod_sends)

    def pass_begins(self, arguments: tuple, options: dict) -> None:
        self.look()  # what is sent within a pass is its own

    def pass_ends(self, arguments: tuple, options: dict):
        return self.guarded(lambda result: setattr(self, "last", sequence()))

    def horovod_sends(self, arguments: tuple, options: dict) -> None:
        self.sent = True

    def look(self) -> None:
        """Has torch's process group sent anything since the last look?"""
        now = sequence()
        self.sent |= now != self.last
        self.last = now

    def before_iter(self, epoch) -> None:
        self.look()
        self.until_now = self.sent  # what comes from here on may be the training's
        if not self.pending:
            self.sent = False

    def fetched(self, epoch, batch) -> None:
        if self.pending:
            self.look()
            self.until_now = self.sent

    def epoch_ended(self, epoch) -> None:
        if epoch.whole and not epoch.optimizer_steps:
            self.pending = True

    def after_step(self, optimizer) -> None:
        if self.pending and not self.watch.stepping:
            self.verdicts.append(self.until_now)
            self.pending = False

    def part(self) -> dict:
        if self.pending and not self.watch.cut:
            self.look()
            self.verdicts.append(self.sent)
        known = sequence() is not None or "horovod.torch" in sys.modules
        if not self.verdicts or not known:
            return {}
        return {"validated": {"times": len(self.verdicts), "silent": self.verdicts.count(False)}}
