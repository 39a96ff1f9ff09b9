"""The task of a rank that trains (bench/config/tasks.py); rank 0 leaves RUN_DIR/record.json.

``train`` is the whole story; each phase below it imports what it needs.
"""

import functools
import gc
import itertools
import os
import time
from pathlib import Path
from typing import NamedTuple

from bench.config.options import AVERAGES, RunConfig, to_dict
from bench.measure import steady
from bench.process.heartbeat import StatusWriter


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Train; with ELASTIC once or more often, as the mode goes on when another rank is lost."""
    if not config.elastic:
        return train(config, run_dir, status)
    status.phase("joining the group")
    from bench.modes import load_mode

    load_mode(config.mode).elastic(config, lambda config, kept: train(config, run_dir, status, kept))


def train(config: RunConfig, run_dir: Path, status: StatusWriter, kept=None) -> None:
    """Join, load, build, measure, collect, write. kept: with ELASTIC, what the mode keeps between two attempts."""
    moments = {"worker_started": steady.now()}
    if kept:
        gc.unfreeze()  # the attempt before this one froze its model and its optimizer as well
        gc.collect()
    gc.disable()  # imports make a million objects and no garbage: looking for it takes a fifth of their time
    status.phase("joining the group")
    script, observer = join(config, run_dir)
    script.mode.kept = kept
    moments["joined"] = steady.now()

    status.phase("preparing the data")
    data = load(config, script, status)
    moments["data_ready"] = steady.now()
    status.phase("building the model")
    trainer, checkpoint, notes = build(config, script, data, status, run_dir)
    gc.freeze()  # the collector is on from here, and leaves alone what the imports made
    gc.enable()

    if config.evaluate:
        evaluate(trainer, data, checkpoint, notes)
    else:
        epochs, tracker = prepare_epochs(trainer, data, checkpoint)
        observer.start(trainer)
        seen = measure(trainer, epochs, data.train_set, moments, observer)
        tracker.close()
        status.phase("collecting results")
        parts = collect(trainer, epochs, data, observer, seen | {"moments": moments, "notes": [*notes, *epochs.notes]})
        write(trainer, epochs, parts, observer)
    status.phase("done")
    script.mode.close()


# --- the phases ---------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """What is trained on. val_set, val_batches: None without a validation set; the batches are this rank's share.
    epoch_images: how many examples an epoch trains on, over all devices."""

    train_set: object
    val_set: object
    val_batches: object
    epoch_images: int


def join(config: RunConfig, run_dir: Path) -> tuple:
    """Join the group of processes: the script with its mode and workload, and what observes the run."""
    import torch

    from bench.modes import load_mode
    from bench.training.observer import Observer
    from bench.training.script import make_script
    from bench.workload import load_workload

    torch.set_num_threads(config.threads_per_process)
    observer = Observer(config, run_dir)
    mode = load_mode(config.mode)(config)
    return make_script(config, mode, load_workload(config, mode.topology.device), config.mistake), observer


def load(config: RunConfig, script, status: StatusWriter) -> Data:
    """The data sets, and this rank's share of the validation."""
    from bench.workload.loader import validation_batches

    def say(sentence: str) -> None:
        print(sentence, flush=True)
        status.phase("preparing the data")  # it goes on

    train_set, val_set = script.workload.load(script.mode, say)
    script.prepare_data(train_set)
    batches = validation_batches(config, script.topology, val_set) if val_set is not None else None
    return Data(train_set, val_set, batches, script.epoch_images(len(train_set)))


def build(config: RunConfig, script, data: Data, status: StatusWriter, run_dir: Path) -> tuple:
    """The trainer with the wrapped model and optimizer; the checkpoint to resume from with its path, or None; what is
    to be noted in the record."""
    from bench.training.loop import Trainer, build_optimizer, learning_rates

    checkpoint = resumed_from(config, script.mode, run_dir)
    model, notes = build_model(config, script, data, status, checkpoint)
    recipe, plain = script.recipe(), script.mode.unwrap(model)
    optimizer = script.mode.wrap_optimizer(build_optimizer(recipe, plain, script.workload.groups(plain)), model)
    lr_of = learning_rates(recipe, data.epoch_images)
    if (
        (held := bytes_on_device(data.train_set))
        and config.device == "cuda"
        and config.num_processes < config.num_devices
    ):
        notes.append(
            f"DATA={config.data} lies on the first device alone, and takes {held / 2**30:.2f} GiB of its memory"
        )
    return Trainer(config, script.mode, model, optimizer, lr_of, status, run_dir, script), checkpoint, notes


def bytes_on_device(train_set) -> int:
    """What a training set takes of its process's device for the whole run: nothing, where it comes from the host."""
    return getattr(train_set, "bytes_on_device", 0)


def resumed_from(config: RunConfig, mode, run_dir: Path) -> tuple | None:
    """The checkpoint to go on from, with its path: of a run that was interrupted its own (ELASTIC), else RESUME's."""
    from bench.training.checkpoint import LATEST, find, from_memory, read

    if mode.kept and mode.kept.checkpoint:
        return from_memory(mode.kept.checkpoint), run_dir / LATEST
    if config.elastic and (run_dir / LATEST).exists():
        path = run_dir / LATEST
    elif config.resume:
        path = Path(mode.gather(str(find(config.resume)))[0])  # all ranks read the same
    else:
        return None
    return read(path), path


def build_model(config: RunConfig, script, data: Data, status: StatusWriter, checkpoint: tuple | None = None) -> tuple:
    """The wrapped model, with the weights of a checkpoint where there is one; what is to be noted in the record.

    What changes the model's modules, its weights or what is trained comes before the wrapper, which looks at them once.
    """
    import torch

    from bench.measure.timeline import StepTimeline
    from bench.training.room import require_room
    from bench.workload import weights
    from bench.workload.freezing import train_mode

    mode, notes = script.mode, []
    topology = mode.topology
    model = script.build_model(script.workload.num_outputs, notes.append)
    require_room(config, mode, model)
    if checkpoint:
        state, path = checkpoint
        weights.load_weights(model, state["model"], path)
    if config.profile:  # before the norms, whose sums over ranks it shows
        mode.timeline = StepTimeline(topology.device, topology.devices)
    if config.norm == "sync":
        model = mode.sync_norms(model)
    elif mode.statistics and any(name.endswith("running_mean") for name, _ in model.named_buffers()):
        notes.append(f"batch norm's running statistics are no parameters: {mode.statistics}")
    last = config.channels_last and not mode.contiguous_weights
    if config.channels_last and not last:
        notes.append(f"images lie as N H W C, and weights as N C H W: {mode.contiguous_weights}")
    model = model.to(topology.device, memory_format=torch.channels_last if last else None)
    train_mode(model)
    script.workload.check(model, data.train_set)
    if config.compile:
        model.compile(mode=config.compile_mode)
    return mode.wrap_model(model), notes


def evaluate(trainer, data: Data, checkpoint: tuple | None, notes: list[str]) -> None:
    """EVALUATE=1: validate, and write the record. Averages that a checkpoint has are validated as well."""
    from bench.measure.environment import collect_environment
    from bench.record.write import write_evaluation
    from bench.training.averages import stored
    from bench.training.validation import validate, validate_averages

    began = time.perf_counter()
    result, topology = validate(trainer, data.val_batches), trainer.mode.topology
    seconds = time.perf_counter() - began  # its figures are on the host: nothing is left to be done on the device
    if checkpoint and trainer.mode.replicated:
        judged = stored(trainer.mode, trainer.model, checkpoint[0])
        result |= validate_averages(trainer, data.val_batches, judged)
    elif checkpoint and any(name in checkpoint[0] for name in AVERAGES):
        notes.append(f"MODE={trainer.config.mode} shards the weights: the checkpoint's averages were not validated")
    if topology.rank == 0:
        write_evaluation(trainer.run_dir, trainer.config, topology, collect_environment(), result, seconds, notes)


def prepare_epochs(trainer, data: Data, checkpoint: tuple | None) -> tuple:
    """The epochs, with what follows them: the checkpoint, the tracker, the comparison of the replicas."""
    from bench.record.privacy import without_names
    from bench.training.epochs import Epochs
    from bench.training.replicas import NOTE, Replicas
    from bench.training.trackers import open_tracker
    from bench.training.validation import judge
    from bench.workload.loader import training_batches, validation_batches

    config, topology = trainer.config, trainer.mode.topology
    steps = len(data.train_set) // config.global_batch  # of an epoch, whole ones
    examples = training_batches(config, topology, data.train_set, steps, keep=False) if config.swa else ()
    epochs = Epochs(trainer, data.epoch_images, data.val_batches, examples)
    if checkpoint:
        epochs.resume(*checkpoint)
    tracker = open_tracker(config.track, trainer.run_dir, to_dict(without_names(config)), topology.rank)
    epochs.add_tracker(tracker)
    if config.replicas:
        whole_val = validation_batches(config, topology, data.val_set, whole=True)
        steps = epochs.ends()[-1] - trainer.step
        once = training_batches(config, topology, data.train_set, len(data.train_set) // config.global_batch)
        epochs.watchers.append(Replicas(trainer, steps, functools.partial(judge, trainer, whole_val), once))
        epochs.notes.append(NOTE)
    return epochs, tracker


def measure(trainer, epochs, train_set, moments: dict, observer) -> dict:
    """Warm up, train and time; then what was measured: times, memory, and which images it was."""
    from bench.measure.facts import collect_facts
    from bench.measure.memory import MemorySampler
    from bench.measure.timeline import PROFILED_STEPS
    from bench.observe.weights import hash_of
    from bench.training import device_profile
    from bench.training.hooks import TimelinePhases
    from bench.workload.loader import plain_errors, training_batches
    from bench.workload.sharding import FINGERPRINTED_STEPS, fingerprint

    config, mode, status, first = trainer.config, trainer.mode, trainer.status, trainer.step
    facts = collect_facts(config, mode, trainer) | {"data_on_device_bytes": bytes_on_device(train_set)}
    facts |= {"decoder": decoder} if (decoder := getattr(train_set, "decoder", None)) else {}
    ends = epochs.ends()
    last = ends[-1] if ends else first + config.warmup_steps + config.timed_steps
    timed_from = min(first + config.warmup_steps, last - 1)  # at least one step is timed
    watched = device_profile.profiled_steps(config, mode)
    steps = last - first + (PROFILED_STEPS + mode.period - 1) * config.profile + watched + bool(config.memory)
    loader = training_batches(config, mode.topology, train_set, steps, trainer.images_seen, trainer.script.order)
    status.total(last)
    trainer.progress.start(first, last, epochs.num_images)
    stream = plain_errors(observer.batches(loader))
    memory = MemorySampler(mode.topology.devices, cpu_replicas=mode.topology.devices_per_process > 1)
    memory.start()
    load = None  # of this machine, while steps are timed

    def start_timing() -> None:
        nonlocal load
        observer.timing_starts()
        load = begin_timing(trainer, memory, moments)

    try:
        if ends:
            epochs.train(stream, timed_from, start_timing)
        else:
            trainer.train_steps(stream, config.warmup_steps)
            start_timing()
            trainer.train_steps(stream, config.timed_steps)
    except Exception:  # with ELASTIC this process may go on
        memory.stop()
        stream.close()
        raise
    times = end_timing(trainer, memory, moments, load)
    status.total(first + steps)  # with those that are watched, and not timed
    trainer.progress.total = first + steps
    seen = {"facts": facts, "loader_workers": loader.num_workers, **times, "devices": memory.stop()}
    if watched:  # before a profiler, which slows a step
        seen["profile"] = device_profile.take(trainer, functools.partial(trainer.train_steps, stream, 1), watched)
    if mode.timeline:  # what a profiler needs is not the training's
        trainer.train_steps(stream, -(trainer.step - first + PROFILED_STEPS) % mode.period)  # the watched one exchanges
        with trainer.hooked(TimelinePhases(mode.timeline)):
            mode.timeline.record(functools.partial(trainer.train_steps, stream, 1), mode.barrier)
        seen["timeline"] = mode.timeline.result(trainer.step - 1)
    if config.memory:
        for device, parts in zip(seen["devices"], memory_parts(trainer, stream, train_set), strict=True):
            device["memory_parts"] = parts
    stream.close()  # its loader workers end here
    indices = [draws % len(train_set) for draws in itertools.islice(loader.sampler, FINGERPRINTED_STEPS)]
    return seen | {
        "first_indices": indices[0].tolist(),
        "batch_fingerprints": [fingerprint(batch) for batch in indices],
        "indices_sha256": hash_of(draws.tobytes() for draws in loader.sampler),
    }


def memory_parts(trainer, stream, train_set) -> list[dict]:
    """MEMORY=1: one more step, in which every allocation is recorded; for each device, what filled it at the peak."""
    from bench.measure.allocations import address_of, record_step
    from bench.training.holdings import holdings, notes_of

    mode = trainer.mode
    mode.compute_in_calling_thread(trainer.model)
    mode.barrier()
    with notes_of(trainer, address_of) as noted:
        return record_step(
            functools.partial(trainer.train_steps, stream, 1), mode.topology.devices,
            functools.partial(holdings, trainer, train_set), noted, mode.buckets,
        )  # fmt: skip


def begin_timing(trainer, memory, moments: dict):
    """All ranks enter the timed steps together; returns what counts this machine's load from here on.

    Energy and memory are marked when the device has done what came before, and the first moment is taken when it
    stands still: on a GPU the untimed steps have been issued when this is called, and are not done.
    """
    from bench.measure.load import Load

    trainer.clock.wait()
    memory.mark("timed")
    trainer.mode.barrier()
    load = Load()
    trainer.clock.start()
    moments["first_timed_step"] = steady.now()
    return load


def end_timing(trainer, memory, moments: dict, load) -> dict:
    """The times of the steps. The last moment is taken when the device is done, and before anything is read."""
    clock = trainer.clock
    clock.wait()
    moments["last_timed_step"] = steady.now()
    counted = load.stop()
    memory.mark("end")
    return {
        "step_time_s": clock.step_time_s(),
        "data_wait_s": list(clock.data_wait_s),
        "phase_time_s": clock.phase_time_s(),
        "load": counted | {"local_rank": trainer.mode.topology.local_rank},
    }


def collect(trainer, epochs, data: Data, observer, seen: dict) -> list[dict]:
    """Every rank's part of the record, by rank; each also has what was observed, and its machine, for ``write``."""
    from bench.measure import node

    topology, script = trainer.mode.topology, trainer.script
    observed = observer.part(data.train_set, data.val_set, epochs.rows, seen["facts"])
    part = {
        "rank": topology.rank,
        "pid": os.getpid(),
        "threads": trainer.mode.compute_threads(),
        "initial_weights_sha256": observed["start"]["parameters"],
        "final_weights_sha256": observed["end"]["parameters"],
        **({"averages_sha256": hashes_of(trainer.averages.models)} if trainer.averages else {}),
        "skipped_steps": trainer.skipped_steps,
        "skipped_images": sorted(trainer.skipped_images),
        "observed": observed,
        **seen,
        **({"lab": lab} if (lab := script.seen()) else {}),
    }
    if epochs.watchers and topology.rank == 0:
        part["replicas"] = epochs.watchers[0].result()
    return trainer.mode.gather(part | {"node": node.machine_of(trainer.mode)})


def hashes_of(averages: dict) -> dict[str, str]:
    """The parameters of each average, as a hash: replicas hold the same where these are the same."""
    from bench.observe.weights import state_of

    return {name: state_of(averaged.module)["parameters"] for name, averaged in averages.items()}


def write(trainer, epochs, parts: list[dict], observer) -> None:
    """Rank 0: put the parts together, and write the record."""
    from bench.measure.environment import collect_environment
    from bench.measure.horovod_timeline import share_communication
    from bench.record.write import write_record

    mode = trainer.mode
    if mode.topology.rank == 0:
        share_communication(parts)
        observed, environment = observer.together(parts), collect_environment()
        write_record(
            trainer.run_dir, trainer.config, mode.topology, mode.label, environment, parts, epochs.rows, observed
        )
