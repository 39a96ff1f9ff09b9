"""The memory of a training, step by step: whether it grows to the end."""

import itertools
import os
from pathlib import Path
from typing import ClassVar

import torch

from bench.observe.probe import Probe, Unheard
from bench.observe.together import columns

MOST_SAMPLES = 512  # beyond them every second one goes
BLOCKS = 6  # in each of which memory has to grow, to grow steadily
FEWEST = {"GPU": 4 * BLOCKS, "host": 8 * BLOCKS}  # samples; a process keeps pages that it has freed
EPOCHS = 5  # ends of epochs, of fewer nothing is said
STEADY = 1 / 3  # of the mean growth of a block: the least
STATM = Path("/proc/self/statm")


class MemoryGrowth(Probe):
    """Memory in use after the steps of the optimizers: on a GPU what torch's tensors fill, otherwise the private
    memory of the process."""

    joins: ClassVar = {"memory": columns}
    silent: ClassVar = {"memory": "too few steps were seen"}

    def __init__(self, watch):
        super().__init__(watch)
        self.step, self.stride, self.samples, self.ends = 0, 1, [], []

    def follow(self, model, optimizer) -> None:
        self.device = next((p.device for p in model.parameters() if p.is_cuda), None)
        self.known = self.device is not None or STATM.exists()

    def used(self) -> int:
        if self.device is not None:
            return torch.cuda.memory_allocated(self.device)
        _, resident, shared, *_ = STATM.read_text().split()  # shared: mapped files, which are read as they are needed
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def after_step(self, optimizer) -> None:
        if self.watch.stepping or not self.known or not self.watch.steps_model(optimizer):
            return
        self.step += 1
        if self.step % self.stride == 0:
            self.samples.append((self.step, self.used()))
            if len(self.samples) == MOST_SAMPLES:
                self.samples, self.stride = self.samples[1::2], 2 * self.stride

    def epoch_ended(self, epoch) -> None:
        if epoch.optimizer_steps and self.known and len(self.ends) < MOST_SAMPLES:
            self.ends.append((self.step, self.used()))

    def part(self) -> dict:
        if not getattr(self, "known", True):
            return {"memory": Unheard("this system does not tell the memory of a process")}
        place = "host" if self.device is None else "GPU"
        found = growth(self.samples, self.ends, FEWEST[place])
        if found is None:
            return {}
        return {"memory": found | {"place": place}}


def growth(samples: list[tuple[int, int]], ends: list[tuple[int, int]], fewest: int) -> dict | None:
    """samples, ends: (step, bytes) within epochs and at their ends. steps: the first and the last of those that are
    compared; bytes: in use at them; steadily: whether it grew all the time between them. None: fewer than so many.

    The first third is left out, in which allocators and caches fill up. Within epochs the lowest samples of blocks are
    compared, for what comes and goes with a step, or waits for Python's collector, is no growth.
    """
    later = samples[len(samples) // 3 :]
    size = len(later) // BLOCKS
    blocks = [min(later[at : at + size], key=lambda each: each[1]) for at in range(0, size * BLOCKS, size or 1)]
    series = [blocks] * (len(later) >= fewest) + [ends[1:]] * (len(ends) >= EPOCHS)
    found = [{"steps": [each[0][0], each[-1][0]], "bytes": [each[0][1], each[-1][1]], "steadily": steady(each)}
             for each in series]  # fmt: skip
    return next((each for each in found if each["steadily"]), found[0] if found else None)


def steady(series: list[tuple[int, int]]) -> bool:
    """Whether it grows from each to the next, by about as much."""
    steps = [(after - before) for (_, before), (_, after) in itertools.pairwise(series)]
    return min(steps) > 0 and min(steps) >= STEADY * sum(steps) / len(steps)
