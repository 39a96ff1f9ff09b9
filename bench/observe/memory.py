"""The memory of a training: whether it grows until the end, and on which GPUs a process has a CUDA context."""

import itertools
import os
import socket
from pathlib import Path
from typing import ClassVar

import torch

from bench.observe.loads import LoadedWeights
from bench.observe.probe import NotObserved, Probe, columns

MOST_SAMPLES = 512  # above this every second one is dropped
BLOCKS = 6  # memory grows steadily if it grows in each of them
FEWEST = {"GPU": 4 * BLOCKS, "host": 8 * BLOCKS}  # samples; a process keeps pages that it has freed
EPOCHS = 5  # ends of epochs needed for a result
STEADY = 1 / 3  # the smallest growth of a block, relative to their mean
STATM = Path("/proc/self/statm")


class MemoryGrowth(Probe):
    """Memory after the optimizers' steps: of torch's tensors on a GPU, otherwise the process's private memory."""

    joins: ClassVar = {"memory": columns}
    silent: ClassVar = {"memory": "too few steps were observed"}
    device, known = None, True

    def setup(self) -> None:
        self.step, self.stride, self.samples, self.ends = 0, 1, [], []

    def follow(self, model, optimizer) -> None:
        self.device = next((p.device for p in model.parameters() if p.is_cuda), None)
        self.known = self.device is not None or STATM.exists()

    def used(self) -> int:
        if self.device is not None:
            return torch.cuda.memory_allocated(self.device)
        _, resident, shared, *_ = STATM.read_text().split()  # shared: mapped files, which are read on demand
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
        if not self.known:
            return {"memory": NotObserved("this system does not report the memory of a process")}
        place = "host" if self.device is None else "GPU"
        found = growth(self.samples, self.ends, FEWEST[place])
        return {"memory": found and found | {"place": place}}


def growth(samples: list[tuple[int, int]], ends: list[tuple[int, int]], fewest: int) -> dict | None:
    """samples, ends: (step, bytes) within epochs and at their ends. steps: the first and the last compared step;
    bytes: in use at these; steadily: whether it grew all the time between them. None: fewer samples than ``fewest``.

    The first third is left out, because allocators and caches fill up in it. Within epochs the lowest samples of blocks
    are compared, because temporary memory of a step, or objects that wait for Python's collector, are not growth.
    """
    later = samples[len(samples) // 3 :]
    size = len(later) // BLOCKS
    blocks = [min(later[at : at + size], key=lambda each: each[1]) for at in range(0, size * BLOCKS, size or 1)]
    series = [blocks] * (len(later) >= fewest) + [ends[1:]] * (len(ends) >= EPOCHS)
    found = [{"steps": [each[0][0], each[-1][0]], "bytes": [each[0][1], each[-1][1]], "steadily": steady(each)}
             for each in series]  # fmt: skip
    return next((each for each in found if each["steadily"]), found[0] if found else None)


def steady(series: list[tuple[int, int]]) -> bool:
    steps = [(after - before) for (_, before), (_, after) in itertools.pairwise(series)]
    return min(steps) > 0 and min(steps) >= STEADY * sum(steps) / len(steps)


def contexts_of(parts: list[dict]) -> dict:
    """By rank: own, the GPUs that the model is on; extra, others on which the process has a context; current, torch's
    current device; loaded, the GPUs on which torch.load put tensors. together: ranks whose models share one GPU of
    several."""
    places = {}
    for rank, part in enumerate(parts):
        for place in part["places"] if part["gpus"] > 1 else ():
            places.setdefault(place, []).append(rank)
    together = next((ranks for ranks in places.values() if len(ranks) > 1), [])
    by_rank = {key: [part[key] for part in parts] for key in ("own", "extra", "current", "loaded")}
    return by_rank | {"together": together}


class Contexts(Probe):
    """This process's CUDA contexts at the end of the training: each stays once created, with hundreds of MiB."""

    joins: ClassVar = {"contexts": contexts_of}
    silent: ClassVar = {"contexts": "no GPU is used"}

    def part(self) -> dict:
        model = self.watch.model
        if model is None or not torch.cuda.is_initialized():
            return {}
        own = {tensor.device.index for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
        own |= {torch.device("cuda", each).index for each in getattr(model, "device_ids", None) or ()}
        if not own:
            return {}
        gpus = torch.cuda.device_count()
        extra = {index for index in range(gpus) if torch._C._cuda_hasPrimaryContext(index)} - own
        uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in own]
        return {"contexts": {
            "gpus": gpus,
            "places": [f"{socket.gethostname()} {uuid}" for uuid in uuids],
            "own": sorted(own),
            "extra": sorted(extra),
            "current": torch.cuda.current_device(),
            "loaded": sorted(self.watch.probe(LoadedWeights).loads.devices - own),
        }}  # fmt: skip
