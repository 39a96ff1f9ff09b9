"""The steps of a run: warm-up, timed steps, and after them the few in which more is looked at.

Here a rank's own figures come from: seconds per step and phase (bench/measure/clock.py), memory, the machine's load,
and which examples it drew.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import DataLoader, Dataset

from bench.measure import steady
from bench.measure.allocations import address_of, record_step
from bench.measure.facts import collect_facts
from bench.measure.load import Load
from bench.measure.memory import MemorySampler
from bench.measure.timeline import PROFILED_STEPS
from bench.observe.weights import hash_of
from bench.training import device_profile
from bench.training.epochs import Epochs
from bench.training.holdings import holdings, notes_of
from bench.training.hooks import TimelinePhases
from bench.training.loop import Trainer
from bench.training.observer import Observer
from bench.workload.loader import plain_errors, training_batches
from bench.workload.sharding import FINGERPRINTED_STEPS, fingerprint


@dataclass(frozen=True)
class Steps:
    """Numbers of steps since the training began, over all runs. first: of this run. timed_from: the first timed one.
    last: the end of the timed ones. end: with those that come after them. profiled: how many of those are for the
    device profile."""

    first: int
    timed_from: int
    last: int
    end: int
    profiled: int


def plan_steps(trainer: Trainer, epoch_ends: list[int]) -> Steps:
    """How many steps a run takes; epoch_ends: the steps that end its epochs, none without EPOCHS."""
    config, mode, first = trainer.config, trainer.mode, trainer.step
    last = epoch_ends[-1] if epoch_ends else first + config.warmup_steps + config.timed_steps
    profiled = device_profile.profiled_steps(config, mode)
    after = (PROFILED_STEPS + mode.period - 1) * config.profile + profiled + bool(config.memory)
    timed_from = min(first + config.warmup_steps, last - 1)  # at least one step is timed
    return Steps(first, timed_from, last, last + after, profiled)


def measure(trainer: Trainer, epochs: Epochs, train_set: Dataset, moments: dict, observer: Observer) -> dict:
    """Warm up, train and time. Returns this rank's ``samples`` entry of the record, as far as it was measured."""
    config, mode = trainer.config, trainer.mode
    facts = collect_facts(config, mode, trainer) | facts_of_data(train_set)
    epoch_ends = epochs.ends()
    steps = plan_steps(trainer, epoch_ends)
    loader = training_batches(
        config, mode.topology, train_set, steps.end - steps.first, trainer.images_seen, trainer.script.order
    )
    observer.sampler = loader.sampler
    tell_total(trainer, steps.last)
    trainer.progress.start(steps.first, steps.last, epochs.num_images)
    stream = plain_errors(iter(loader))
    memory = MemorySampler(mode.topology.devices, cpu_replicas=mode.topology.devices_per_process > 1)
    memory.start()
    timing = Timing(trainer, memory, moments, observer)
    try:
        if epoch_ends:
            epochs.train(stream, steps.timed_from, timing.begin)
        else:
            trainer.train_steps(stream, config.warmup_steps)
            timing.begin()
            trainer.train_steps(stream, config.timed_steps)
    except Exception:  # with ELASTIC this process may go on
        memory.stop()
        stream.close()
        raise
    seen = {"facts": facts, "loader_workers": loader.num_workers, **timing.end(), "devices": memory.stop()}
    tell_total(trainer, steps.end)  # with those that are watched, and not timed
    seen |= look_closer(trainer, stream, train_set, steps, seen["devices"])
    stream.close()  # its loader workers end here
    return seen | drawn(loader, len(train_set))


def facts_of_data(train_set: Dataset) -> dict:
    """Where it lies, and what decodes its images where something does."""
    decoder = getattr(train_set, "decoder", None)
    held = getattr(train_set, "bytes_on_device", 0)  # of its process's device, for the whole run
    return {"data_on_device_bytes": held} | ({"decoder": decoder} if decoder else {})


def tell_total(trainer: Trainer, steps: int) -> None:
    """How many steps there will be."""
    trainer.status.total(steps)
    trainer.progress.total = steps


class Timing:
    """The timed steps of a rank, from when all ranks enter them together to when the device is done.

    moments: gets the first and the last one. memory: is marked at both.
    """

    def __init__(self, trainer: Trainer, memory: MemorySampler, moments: dict, observer: Observer):
        self.trainer, self.memory, self.moments, self.observer = trainer, memory, moments, observer

    def begin(self) -> None:
        """The next step is the first timed one.

        Energy and memory are marked when the device has done what came before, and the first moment is taken when it
        stands still: on a GPU the untimed steps have been issued when this is called, and are not done.
        """
        self.observer.timing_starts()
        self.trainer.clock.wait()
        self.memory.mark("timed")
        self.trainer.mode.barrier()
        self.load = Load()  # of this machine
        self.trainer.clock.start()
        self.moments["first_timed_step"] = steady.now()

    def end(self) -> dict:
        """The times of the steps. The last moment is taken when the device is done, before anything is read."""
        clock = self.trainer.clock
        clock.wait()
        self.moments["last_timed_step"] = steady.now()
        counted = self.load.stop()
        self.memory.mark("end")
        return {
            "step_time_s": clock.step_time_s(),
            "data_wait_s": list(clock.data_wait_s),
            "phase_time_s": clock.phase_time_s(),
            "load": counted | {"local_rank": self.trainer.mode.topology.local_rank},
        }


# --- steps after the timed ones -----------------------------------------------------------------------------------


def look_closer(trainer: Trainer, stream: Iterator, train_set: Dataset, steps: Steps, devices: list[dict]) -> dict:
    """PROFILE=1 and MEMORY=1: a few more steps. devices: gets what fills each one's memory."""
    mode, found = trainer.mode, {}
    take_step = functools.partial(trainer.train_steps, stream, 1)
    if steps.profiled:  # before a profiler, which slows a step
        found["profile"] = device_profile.take(trainer, take_step, steps.profiled)
    if mode.timeline:  # what a profiler needs is not the training's
        until_exchange = -(trainer.step - steps.first + PROFILED_STEPS) % mode.period
        trainer.train_steps(stream, until_exchange)  # the watched step exchanges
        with trainer.hooked(TimelinePhases(mode.timeline)):
            mode.timeline.record(take_step, mode.barrier)
        found["timeline"] = mode.timeline.result(trainer.step - 1)
    if trainer.config.memory:
        for device, parts in zip(devices, memory_parts(trainer, take_step, train_set), strict=True):
            device["memory_parts"] = parts
    return found


def memory_parts(trainer: Trainer, take_step, train_set: Dataset) -> list[dict]:
    """One more step, in which every allocation is recorded; for each device, what filled it at the peak."""
    mode = trainer.mode
    mode.compute_in_calling_thread(trainer.model)
    mode.barrier()
    kept = functools.partial(holdings, trainer, train_set)
    with notes_of(trainer, address_of) as noted:
        return record_step(take_step, mode.topology.devices, kept, noted, mode.buckets)


def drawn(loader: DataLoader, num_images: int) -> dict:
    """Which examples this rank trained on: the first ones, and hashes by which ranks and runs are compared."""
    indices = [draws % num_images for draws in itertools.islice(loader.sampler, FINGERPRINTED_STEPS)]
    return {
        "first_indices": indices[0].tolist(),
        "batch_fingerprints": [fingerprint(batch) for batch in indices],
        "indices_sha256": hash_of(draws.tobytes() for draws in loader.sampler),
    }
