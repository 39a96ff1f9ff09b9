"""One process's life, top to bottom: ``python -m bench.worker RUN_DIR``, started by a launcher.

What comes in: RUN_DIR/config.json, and a rank from the launcher's environment. What goes out: RUN_DIR/rank<r>.log and,
from rank 0, RUN_DIR/record.json. A process that fails leaves RUN_DIR/.rank<r>.error.json and ends at once.
"""

import functools
import gc
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from bench.config import RunConfig, from_dict
from bench.guard import Guard
from bench.progress import StatusWriter


def main() -> None:
    """Set up what must work even when everything else fails, then run."""
    run_dir = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    with Guard(run_dir, rank) as guard:
        config = from_dict(json.loads((run_dir / "config.json").read_text()))
        guard.status = StatusWriter(run_dir, rank)
        run(config, run_dir, guard.status)


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Join, build, warm up, time, collect, write."""
    moments = {"worker_started": time.time()}
    gc.disable()  # imports make a million objects and no garbage: looking for it takes a fifth of their time
    import torch

    from bench.measure.environment import collect_environment
    from bench.measure.facts import collect_facts
    from bench.measure.memory import MemorySampler
    from bench.measure.timeline import PROFILED_STEPS, StepTimeline, share_communication
    from bench.modes import load_mode
    from bench.record import write_record
    from bench.train import Trainer, build_optimizer
    from bench.workload.data import batches, load_data
    from bench.workload.models import build_model
    from bench.workload.sharding import FINGERPRINTED_STEPS, fingerprint, steps_of_epochs

    torch.set_num_threads(threads_per_process(config))
    status.phase("joining the group")
    mode = load_mode(config.mode)(config)
    topology = mode.topology
    moments["joined"] = time.time()

    status.phase("building the model")
    train_set, val_set = load_data(config, topology.device)
    model = build_model(config, train_set.num_classes, topology.rank).to(topology.device)
    if config.profile:
        mode.timeline = StepTimeline(topology.device, topology.devices)
        mode.timeline.watch_phases(status)
    model = mode.wrap_model(model)
    optimizer = mode.wrap_optimizer(build_optimizer(config, model), model)
    trainer = Trainer(config, mode, model, optimizer, status, run_dir)
    gc.freeze()  # the collector is on from here, and leaves alone what the imports made
    gc.enable()
    start_hash = weights_hash(mode.unwrap(model))
    facts = collect_facts(config, mode, model, optimizer, trainer.autocast)

    ends = steps_of_epochs(len(train_set), config.epochs, config.global_batch)
    timed_steps = ends[-1] if ends else config.timed_steps
    loader = batches(config, topology, train_set, config.warmup_steps + timed_steps + PROFILED_STEPS * config.profile)
    data_hash = hashlib.sha256(b"".join(i.tobytes() for i in loader.sampler)).hexdigest()
    status.total(config.warmup_steps + timed_steps)
    stream = iter(loader)
    memory = MemorySampler(topology.devices)
    memory.start()
    trainer.train_steps(stream, config.warmup_steps)
    memory.mark("timed")
    mode.barrier()  # all ranks enter the timed steps together
    moments["first_timed_step"] = time.time()
    trainer.clock.start()
    accuracy = []
    if ends:
        accuracy = train_epochs(trainer, stream, ends, val_set, moments)
    else:
        trainer.train_steps(stream, timed_steps)
    clock = trainer.clock
    times = {
        "step_time_s": clock.step_time_s(),
        "data_wait_s": list(clock.data_wait_s),
        "phase_time_s": clock.phase_time_s(),
    }
    memory.mark("end")
    moments["last_timed_step"] = time.time()

    devices = memory.stop()  # what a profiler needs is not the training's
    if mode.timeline:
        mode.timeline.record(functools.partial(trainer.train_steps, stream, 1), mode.barrier)
    del stream  # its loader workers end here
    status.phase("collecting results")
    part = {
        "rank": topology.rank,
        "pid": os.getpid(),
        "threads": mode.compute_threads(),
        "loader_workers": loader.num_workers,
        **times,
        "facts": facts,
        "moments": moments,
        "initial_weights_sha256": start_hash,
        "first_indices": loader.sampler[0].tolist(),
        "batch_fingerprints": [fingerprint(indices) for indices in loader.sampler[:FINGERPRINTED_STEPS]],
        "indices_sha256": data_hash,
        "final_weights_sha256": weights_hash(mode.unwrap(model)),
        "devices": devices,
    }
    if mode.timeline:
        part["timeline"] = mode.timeline.result(trainer.step - 1)
    parts = mode.gather(part)
    if topology.rank == 0:
        share_communication(parts)
        environment = collect_environment()
        write_record(run_dir, config, topology, mode.label, environment, parts, accuracy)
    status.phase("done")
    mode.close()


def train_epochs(trainer, stream, ends: list[int], val_set, moments: dict) -> list[dict]:
    """Train from epoch end to epoch end, validating after each. Validation is not timed: the clock's samples of a step
    end before it, and the step after it starts anew."""
    accuracy, done = [], 0
    for epoch, end in enumerate(ends, start=1):
        trainer.train_steps(stream, end - done)
        done = end
        row = {"epoch": epoch, "steps": end}
        if val_set is not None:
            row |= trainer.validate(val_set)
        accuracy.append(row | {"elapsed_s": time.time() - moments["first_timed_step"]})
        trainer.clock.resume()
    return accuracy


def threads_per_process(config: RunConfig) -> int:
    """The CPU threads of one process: its share of the total, at least one."""
    return max(1, config.threads // config.num_processes)


def weights_hash(model) -> str:
    """sha256 of all parameters' bytes, in order: two replicas agree when these agree."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
