"""What a training leaves: every rank's part is gathered, and rank 0 writes the record."""

import os
import time

from bench.config.sections import AVERAGES
from bench.measure import node
from bench.measure.environment import collect_environment
from bench.measure.horovod_timeline import share_communication
from bench.observe.weights import state_of
from bench.record.write import write_evaluation, write_record
from bench.training.averages import stored
from bench.training.build import Built, Data
from bench.training.epochs import Epochs
from bench.training.loop import Trainer
from bench.training.observer import Observer
from bench.training.validation import validate, validate_averages


def evaluate(built: Built, data: Data) -> None:
    """EVALUATE=1: validate, and write the record. Averages that a checkpoint has are validated as well."""
    trainer, checkpoint = built.trainer, built.checkpoint
    config, mode = trainer.config, trainer.mode
    began = time.perf_counter()
    result = validate(trainer, data.val_batches)
    seconds = time.perf_counter() - began  # its figures are on the host: nothing is left to be done on the device
    if checkpoint and mode.replicated:
        judged = stored(mode, trainer.model, checkpoint.state)
        result |= validate_averages(trainer, data.val_batches, judged)
    elif checkpoint and any(name in checkpoint.state for name in AVERAGES):
        built.notes.append(f"MODE={config.mode} shards the weights: the checkpoint's averages were not validated")
    if mode.topology.rank == 0:
        environment = collect_environment()
        write_evaluation(trainer.run_dir, config, mode.topology, environment, result, seconds, built.notes)


def collect(trainer: Trainer, epochs: Epochs, data: Data, observer: Observer, measured: dict) -> list[dict]:
    """Every rank's part of the record, by rank; each also has what was observed, and its machine, for ``write``."""
    topology = trainer.mode.topology
    observed = observer.part(data.train_set, data.val_set, epochs.rows, measured["facts"])
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
        **measured,
        **({"lab": lab} if (lab := trainer.script.seen()) else {}),
    }
    if epochs.watchers and topology.rank == 0:
        part["replicas"] = epochs.watchers[0].result()
    return trainer.mode.gather(part | {"node": node.machine_of(trainer.mode)})


def hashes_of(averages: dict) -> dict[str, str]:
    """The parameters of each average, as a hash: replicas hold the same where these are the same."""
    return {name: state_of(averaged.module)["parameters"] for name, averaged in averages.items()}


def write(trainer: Trainer, epochs: Epochs, parts: list[dict], observer: Observer) -> None:
    """Rank 0: put the parts together, and write the record."""
    mode = trainer.mode
    if mode.topology.rank == 0:
        share_communication(parts)
        observed, environment = observer.together(parts), collect_environment()
        write_record(
            trainer.run_dir, trainer.config, mode.topology, mode.label, environment, parts, epochs.rows, observed
        )
