"""One process's life, top to bottom: ``python -m bench.worker RUN_DIR``, started by a launcher.

What comes in: RUN_DIR/config.json, and a rank from the launcher's environment. What goes out: RUN_DIR/rank<r>.log and,
from rank 0, RUN_DIR/record.json. A process that fails leaves RUN_DIR/.rank<r>.error.json and ends at once.
"""

import functools
import gc
import itertools
import json
import os
import sys
import time
from pathlib import Path

from bench.config.options import RunConfig, from_dict, to_dict
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter


def main() -> None:
    """Set up what must work even when everything else fails, then run."""
    run_dir = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    with Guard(run_dir, rank) as guard:
        config = from_dict(json.loads((run_dir / "config.json").read_text()))
        guard.status = StatusWriter(run_dir, rank)
        run(config, run_dir, guard.status)


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Join, build, train, collect, write."""
    moments = {"worker_started": time.time()}
    gc.disable()  # imports make a million objects and no garbage: looking for it takes a fifth of their time
    import torch

    from bench.measure.environment import collect_environment
    from bench.measure.facts import collect_facts
    from bench.measure.timeline import share_communication
    from bench.modes import load_mode
    from bench.observe.observer import Observer
    from bench.record.write import without_names, write_evaluation, write_record
    from bench.training.epochs import Epochs, validate
    from bench.training.loop import Trainer, build_optimizer, learning_rates
    from bench.training.script import script_of
    from bench.training.trackers import open_tracker
    from bench.workload.images import load as data
    from bench.workload.images import place

    torch.set_num_threads(threads_per_process(config))
    observer = Observer(config, run_dir)
    status.phase("joining the group")
    mode = load_mode(config.mode)(config)
    topology = mode.topology
    script = script_of(config, mode)
    moments["joined"] = time.time()

    def say(sentence: str) -> None:
        print(sentence, flush=True)
        status.phase("preparing the data")  # it goes on

    status.phase("preparing the data")
    train_set, val_set = data.load_data(config, topology.device, *place.find(config, mode, say))
    script.prepare_data(train_set)
    val_batches = data.validation_batches(config, topology, val_set) if val_set is not None else None
    status.phase("building the model")
    model, checkpoint, notes = prepare_model(config, script, train_set.num_classes, status)
    optimizer = mode.wrap_optimizer(build_optimizer(script.recipe(), mode.unwrap(model)), model)
    epoch_images = script.epoch_images(len(train_set))
    to_float, lr_of = data.ToFloat(train_set, topology.device), learning_rates(script.recipe(), epoch_images)
    trainer = Trainer(config, mode, model, optimizer, to_float, lr_of, status, run_dir, script)
    gc.freeze()  # the collector is on from here, and leaves alone what the imports made
    gc.enable()
    if config.evaluate:
        result = validate(trainer, val_batches)
        if topology.rank == 0:
            write_evaluation(run_dir, config, topology, collect_environment(), result, notes)
        return leave(mode, status)

    epochs = Epochs(trainer, epoch_images, val_batches)
    if checkpoint:
        epochs.resume(*checkpoint)
    tracker = open_tracker(config.track, run_dir, to_dict(without_names(config)), topology.rank)
    epochs.tell(tracker)
    if config.replicas:
        whole_val = data.validation_batches(config, topology, val_set, whole=True)
        steps = len(train_set) // config.global_batch
        epochs.compare_replicas(whole_val, data.training_batches(config, topology, train_set, steps))
    facts = collect_facts(config, mode, trainer)
    observer.start(trainer)
    seen = measure(trainer, epochs, train_set, moments, observer)
    tracker.close()
    observed = observer.part(train_set, val_set, epochs.rows, facts)
    part = {
        "rank": topology.rank,
        "pid": os.getpid(),
        "threads": mode.compute_threads(),
        "facts": facts,
        "moments": moments,
        "initial_weights_sha256": observed["start"]["parameters"],
        "final_weights_sha256": observed["end"]["parameters"],
        "skipped_steps": trainer.skipped_steps,
        "skipped_images": sorted(trainer.skipped_images),
        "notes": [*notes, *epochs.notes],
        "observed": observed,
        **seen,
        **({"lab": lab} if (lab := script.seen()) else {}),
    }
    if epochs.replicas and topology.rank == 0:
        part["replicas"] = epochs.replicas.result()
    parts = mode.gather(part)
    if topology.rank == 0:
        share_communication(parts)
        observed = observer.together(parts)
        write_record(run_dir, config, topology, mode.label, collect_environment(), parts, epochs.rows, observed)
    leave(mode, status)


def prepare_model(config: RunConfig, script, num_classes: int, status: StatusWriter) -> tuple:
    """The wrapped model; the checkpoint to go on from with its path, or None; and what is to be noted in the record.

    What changes the model's modules, its weights or what is trained comes before the wrapper, which looks at them once.
    """
    import torch

    from bench.measure.timeline import StepTimeline
    from bench.training import checkpoint as files
    from bench.workload.images.models import train_mode

    mode, checkpoint, notes = script.mode, None, []
    topology = mode.topology
    model = script.build_model(num_classes, notes.append)
    if config.resume:
        path = Path(mode.gather(str(files.find(config.resume)))[0])  # all ranks read the same
        state = files.read(path)
        files.check(state, path)
        files.load_weights(model, state["model"], path)
        checkpoint = state, path
    if config.profile:  # before the norms, whose sums over ranks it shows
        mode.timeline = StepTimeline(topology.device, topology.devices)
        mode.timeline.watch_phases(status)
    if config.norm == "sync":
        model = mode.sync_norms(model)
    last = config.channels_last and mode.channels_last_weights
    model = model.to(topology.device, memory_format=torch.channels_last if last else None)
    train_mode(model)
    if config.compile:
        model.compile()
    return mode.wrap_model(model), checkpoint, notes


def measure(trainer, epochs, train_set, moments: dict, observer) -> dict:
    """Warm up, train and time; then what was measured: times, memory, and which images it was."""
    from bench.measure.memory import MemorySampler
    from bench.measure.timeline import PROFILED_STEPS
    from bench.observe.probes import hash_of
    from bench.workload.images.load import plain_errors, training_batches
    from bench.workload.sharding import FINGERPRINTED_STEPS, fingerprint

    config, mode, status, first = trainer.config, trainer.mode, trainer.status, trainer.step
    ends = epochs.ends()
    last = ends[-1] if ends else first + config.warmup_steps + config.timed_steps
    timed_from = min(first + config.warmup_steps, last - 1)  # at least one step is timed
    steps = last - first + PROFILED_STEPS * config.profile
    loader = training_batches(config, mode.topology, train_set, steps, trainer.images_seen, trainer.script.order)
    status.total(last)
    stream = plain_errors(observer.batches(loader))
    memory = MemorySampler(mode.topology.devices, cpu_replicas=mode.topology.devices_per_process > 1)
    memory.start()

    def start_timing() -> None:
        observer.timing_starts()
        memory.mark("timed")
        mode.barrier()  # all ranks enter the timed steps together
        moments["first_timed_step"] = time.time()
        trainer.clock.start()

    if ends:
        epochs.train(stream, timed_from, start_timing)
    else:
        trainer.train_steps(stream, config.warmup_steps)
        start_timing()
        trainer.train_steps(stream, config.timed_steps)
    clock = trainer.clock
    times = {
        "step_time_s": clock.step_time_s(),
        "data_wait_s": list(clock.data_wait_s),
        "phase_time_s": clock.phase_time_s(),
    }
    memory.mark("end")
    moments["last_timed_step"] = time.time()
    seen = {"loader_workers": loader.num_workers, **times, "devices": memory.stop()}
    if mode.timeline:  # what a profiler needs is not the training's
        mode.timeline.record(functools.partial(trainer.train_steps, stream, 1), mode.barrier)
        seen["timeline"] = mode.timeline.result(trainer.step - 1)
    stream.close()  # its loader workers end here
    status.phase("collecting results")
    indices = [draws % len(train_set) for draws in itertools.islice(loader.sampler, FINGERPRINTED_STEPS)]
    return seen | {
        "first_indices": indices[0].tolist(),
        "batch_fingerprints": [fingerprint(batch) for batch in indices],
        "indices_sha256": hash_of(draws.tobytes() for draws in loader.sampler),
    }


def leave(mode, status: StatusWriter) -> None:
    """The end of a life that went well."""
    status.phase("done")
    mode.close()


def threads_per_process(config: RunConfig) -> int:
    """The CPU threads of one process: its share of the total, at least one."""
    return max(1, config.threads // config.num_processes)


if __name__ == "__main__":
    main()
