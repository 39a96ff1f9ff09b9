"""The steps of a run: warm-up, timed steps, and a few more for profiles. Then the ranks' parts of the record are
gathered, and rank 0 writes it."""

import itertools
import os
import time

from torch.utils.data import Dataset

from bench.config.sections import AVERAGES
from bench.measure import environment, load, node, steady
from bench.measure.facts import collect_facts
from bench.measure.memory import MemorySampler
from bench.observe.weights import hash_of, state_of
from bench.profile.clocks import join_timelines
from bench.profile.timeline import PROFILED_STEPS
from bench.record.describe import utilization
from bench.record.view import Record
from bench.record.write import write_evaluation, write_record
from bench.training.averages import stored
from bench.training.build import Data
from bench.training.checkpoint import Checkpoint
from bench.training.epochs import Epochs
from bench.training.examine import examine, profiled_steps
from bench.training.loop import Trainer
from bench.training.observer import Observer
from bench.training.validation import validate, validate_averages
from bench.workload.loader import plain_errors, training_batches
from bench.workload.sharding import FINGERPRINTED_STEPS, fingerprint


def measure(trainer: Trainer, epochs: Epochs, train_set: Dataset, moments: dict, observer: Observer) -> dict:
    """Warm up, train and time. Returns this rank's ``samples`` entry of the record."""
    config, mode = trainer.config, trainer.mode
    facts = collect_facts(config, mode, trainer)
    facts["data_on_device_bytes"] = getattr(train_set, "bytes_on_device", 0)  # of its process's device
    if decoder := getattr(train_set, "decoder", None):
        facts["decoder"] = decoder
    first, epoch_ends = trainer.step, epochs.ends()
    last = epoch_ends[-1] if epoch_ends else first + config.warmup_steps + config.timed_steps
    timed_from = min(first + config.warmup_steps, last - 1)  # at least one step is timed
    profiled = profiled_steps(config, mode)
    end = last + (PROFILED_STEPS + mode.period - 1) * config.profile + profiled + bool(config.memory)
    order = trainer.script.order
    loader = training_batches(config, mode.topology, train_set, end - first, trainer.images_seen, order)
    observer.sampler = loader.sampler
    announce_total(trainer, last)
    trainer.progress.start(first, last, epochs.num_images)
    stream = plain_errors(iter(loader))
    memory = MemorySampler(mode.topology.devices, cpu_replicas=mode.topology.devices_per_process > 1)
    memory.start()
    timing = Timing(trainer, memory, moments, observer)
    try:
        if epoch_ends:
            epochs.train(stream, timed_from, timing.begin)
        else:
            trainer.train_steps(stream, config.warmup_steps)
            timing.begin()
            trainer.train_steps(stream, config.timed_steps)
    except Exception:  # with MIN_DEVICES this process may continue
        memory.stop()
        stream.close()
        raise
    seen = {"facts": facts, "loader_workers": loader.num_workers, **timing.end(), "devices": memory.stop()}
    announce_total(trainer, end)  # including the untimed steps for profiles
    seen |= examine(trainer, stream, train_set, trainer.step - first, profiled, seen["devices"])
    stream.close()  # its loader workers end here
    indices = [draws % len(train_set) for draws in itertools.islice(loader.sampler, FINGERPRINTED_STEPS)]
    return seen | {  # the first examples of this rank, and hashes by which ranks and runs are compared
        "first_indices": indices[0].tolist(),
        "batch_fingerprints": [fingerprint(batch) for batch in indices],
        "indices_sha256": hash_of(draws.tobytes() for draws in loader.sampler),
    }


def announce_total(trainer: Trainer, steps: int) -> None:
    trainer.status.total(steps)
    trainer.progress.total = steps


class Timing:
    """The timed steps of a rank, from the common start of all ranks to the end on the device. moments: gets the start
    and the end. memory: is marked at both."""

    def __init__(self, trainer: Trainer, memory: MemorySampler, moments: dict, observer: Observer):
        self.trainer, self.memory, self.moments, self.observer = trainer, memory, moments, observer

    def begin(self) -> None:
        """The next step is the first timed one. On a GPU the untimed steps may still be running: energy, memory and the
        first moment are read when they have finished."""
        self.observer.timing_starts()
        self.trainer.clock.wait()
        self.memory.mark("timed")
        self.trainer.mode.barrier()
        self.load = load.Load()  # of this machine
        self.trainer.clock.start()
        self.moments["first_timed_step"] = steady.now()

    def end(self) -> dict:
        """The times of the steps. The last moment is taken when the device has finished, before anything is read."""
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


# --- the record -------------------------------------------------------------------------------------------------------


def evaluate(trainer: Trainer, checkpoint: Checkpoint | None, data: Data) -> None:
    config, mode = trainer.config, trainer.mode
    began = time.perf_counter()
    result = validate(trainer, data.val_batches)
    seconds = time.perf_counter() - began  # the result is on the host, so the device has finished
    if checkpoint and mode.replicated:
        result |= validate_averages(trainer, data.val_batches, stored(mode, trainer.model, checkpoint.state))
    elif checkpoint and any(name in checkpoint.state for name in AVERAGES):
        trainer.notes.append(f"MODE={config.mode} shards the weights: the checkpoint's averages were not validated")
    if mode.topology.rank == 0:
        facts = environment.collect_environment()
        write_evaluation(trainer.run_dir, config, mode.topology, facts, result, seconds, trainer.notes)


def collect(trainer: Trainer, epochs: Epochs, data: Data, observer: Observer, measured: dict) -> list[dict]:
    """Every rank's part of the record, by rank; each also has its observations and its machine, for ``write``."""
    topology = trainer.mode.topology
    trainer.count_left_out()
    observed = observer.part(data.train_set, data.val_set, epochs.rows, measured["facts"])
    part = {
        "rank": topology.rank,
        "pid": os.getpid(),
        "threads": trainer.mode.compute_threads(),
        "initial_weights_sha256": observed["start"]["parameters"],
        "final_weights_sha256": observed["end"]["parameters"],
        "skipped_steps": trainer.skipped_steps,
        "skipped_images": sorted(trainer.skipped_images),
        "observed": observed,
        **measured,
    }
    if trainer.averages:
        models = trainer.averages.models.items()
        part["averages_sha256"] = {name: state_of(averaged.module)["parameters"] for name, averaged in models}
    if lab := trainer.script.seen():
        part["lab"] = lab
    if epochs.replicas and topology.rank == 0:
        part["replicas"] = epochs.replicas.result()
    return trainer.mode.gather(part | {"node": node.machine_of(trainer.mode)})


def write(trainer: Trainer, epochs: Epochs, parts: list[dict], observer: Observer) -> None:
    mode = trainer.mode
    if mode.topology.rank == 0:
        join_timelines(parts)
        observed, machine, path = observer.join_over_ranks(parts), environment.collect_environment(), trainer.run_dir
        config, rows = trainer.config, epochs.rows
        record = write_record(path, config, mode.topology, mode.label, machine, parts, rows, observed)
        if epochs.curves:
            found = utilization(Record(record, str(path)))
            epochs.curves.run_ended(trainer.step, record["summary"] | found)
            epochs.curves.tracker.close()
