"""A rank's progress reports: numbers in its heartbeat, and lines in its log that show a slow rank. Nothing here waits
for the device: the loss is the newest known one, and times are the host's."""

import math
import time

import torch

from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.process.heartbeat import VALIDATING, Heartbeat, StatusWriter, Window, in_words, line_is_due

WINDOW_S = 1.0  # the least time between two rates


class Progress:
    """Counts the steps of one rank, and the batches of its validations. rank: if there are several. loss: this rank's
    newest known one; the trainer sets it."""

    def __init__(self, config: RunConfig, status: StatusWriter, device: torch.device, rank: int | None = None):
        self.config, self.status, self.device, self.rank = config, status, device, rank
        self.workload, self.loss = workload_of(config), None
        self.validating, self.validated_at = 0, 0.0  # the last reported batch of a validation, and its time
        self.start(0, 0, 0)

    def start(self, step: int, total: int, epoch_images: int) -> None:
        self.total, self.epoch_images = total, epoch_images if self.config.epochs else 0
        self.reported_at, self.reported = time.perf_counter(), step
        self.resume(step)

    def resume(self, step: int) -> None:
        """Work after this step, such as a validation, does not count towards a rate."""
        self.since, self.first, self.waited = time.perf_counter(), step, 0.0

    def step_done(self, step: int, waited_s: float, lr: float, images_seen: int) -> Window | None:
        """``step`` steps are done; the last one waited ``waited_s`` seconds for its batch. Returns what it reports."""
        self.waited += waited_s
        took = (now := time.perf_counter()) - self.since
        due = line_is_due(self.config.print_every, step, self.reported, self.total, now - self.reported_at)
        if took < WINDOW_S and not due:
            return None
        units = max(1, step - self.first) * self.config.global_batch * self.workload.per_example
        rate, wait = units / max(took, 1e-9), self.waited / max(took, 1e-9)
        window = Window(self.epoch_of(images_seen), rate, wait, lr, memory_gib(self.device))
        self.status.window(window)
        if due:
            beat = Heartbeat(0, "", step, self.total, math.nan if self.loss is None else self.loss, window=window)
            said = in_words(beat, self.workload.units, self.rank)
            print(f"{said}, {window.memory_gib:.2f} GiB", flush=True)
            self.reported_at, self.reported = now, step
        self.resume(step)
        return window

    def epoch_of(self, images_seen: int) -> int:
        return 1 + (images_seen - self.config.global_batch) // self.epoch_images if self.epoch_images else 0

    def validation_starts(self, images_seen: int, batches: int) -> None:
        self.validating, self.validated_at = 0, time.perf_counter()
        self.status.validated(self.epoch_of(images_seen), 0, batches)

    def batch_validated(self, images_seen: int, batch: int, batches: int) -> None:
        epoch, now = self.epoch_of(images_seen), time.perf_counter()
        self.status.validated(epoch, batch, batches)
        if line_is_due(self.config.print_every, batch, self.validating, batches, now - self.validated_at):
            beat = Heartbeat(0, VALIDATING, 0, 0, math.nan, window=Window(epoch, batch=batch, batches=batches))
            print(in_words(beat, self.workload.units), flush=True)
            self.validating, self.validated_at = batch, now


def memory_gib(device: torch.device) -> float:
    """What torch has reserved on a GPU; the resident memory of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / 2**30
    import psutil

    return psutil.Process().memory_info().rss / 2**30
