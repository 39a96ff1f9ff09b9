"""Before a study: refuse what it would ignore, fill in this machine's defaults, say what will run."""

import dataclasses
import importlib.util
from collections.abc import Iterable

from bench.config import gpu_defaults
from bench.config.flags import refuse_others
from bench.config.hosts import where
from bench.config.modes import COMPARED, MODES, TRAINABLE, ModeInfo
from bench.config.options import FIELDS, RunConfig, of_training
from bench.config.workloads import work, workload_of
from bench.errors import RunFailed, UserError
from bench.record.view import Record
from bench.studies.programs import impossible, in_mode

RECIPE_GLOBAL_BATCH = 64  # of the studies that train to the end
TRAINING = ("epochs", "lr_warmup_epochs", "target", "val_batch")  # what they take of the options of a training
OF_SINGLE_RUNS = ("fault", "snapshots", "baselines", "profile", "launcher", "dist_url", "mistake")


def refuse(asked: RunConfig, *options: str) -> None:
    """Raise UserError for an option that this command would ignore."""
    refuse_others(asked, FIELDS.keys() - set(options), "belongs to single runs (`make bench`)")


def prepare(console, asked: RunConfig, trains: bool = False) -> RunConfig:
    """Refuse what would be ignored, fill in defaults, say what will run. trains: by epochs. Raises UserError."""
    from bench.launch.devices import remarks  # a list of commands needs no more than the standard library
    from bench.launch.launcher import resolve_here

    refuse(asked, *(n for n in (*of_training(), *OF_SINGLE_RUNS) if not (trains and n in TRAINING)))
    config = dataclasses.replace(resolve_here(asked), baselines=False)
    steps = f"{config.warmup_steps} + {config.timed_steps} steps"
    if trains:
        steps = f"{config.epochs} epochs, learning rate {config.lr:g} ({config.schedule})"
    said = [
        *remarks(asked),
        where(config) if config.hosts else "",
        "No GPU is used: CPU workers stand for devices; memory is the host's." if config.device == "cpu" else "",
        f"{work(config)}, {config.per_device_batch} {workload_of(config).batched} per device, {steps}, "
        f"{config.precision}, seed {config.seed}",
        gpu_defaults.sentence(config),
    ]
    for line in filter(None, said):
        console.print(line)
    return config


def prepare_modes(console, asked: RunConfig, modes: Iterable[str], **changes) -> tuple[RunConfig, list[str]]:
    """``prepare``, and the modes that can run here. The optimizer is fused by default if all of them can."""
    config = prepare(console, dataclasses.replace(asked, mode="ddp", **changes))
    modes = available(console, config, modes)
    found = gpu_defaults.without_fused(config, modes)
    if found is not config:
        console.print(f"no mode gets the fused optimizer: torch has no fused {config.optimizer} for one of them")
    return found, modes


def prepare_training(console, asked: RunConfig) -> RunConfig:
    """``prepare`` for a suite that trains to the end, with a global batch of RECIPE_GLOBAL_BATCH where the user names
    none, and on a GPU in plain arithmetic: it asks whether trainings agree, not how fast they are."""
    refuse(asked, "mode", "timed_steps", "warmup_steps")
    if asked.per_device_batch is None:
        share = max(1, RECIPE_GLOBAL_BATCH // (asked.num_devices * asked.accumulate))
        asked = dataclasses.replace(asked, per_device_batch=share)
    config = prepare(console, dataclasses.replace(asked, mode="ddp", plain=True), trains=True)
    return dataclasses.replace(config, checkpoint=False)


def available(console, config: RunConfig, among: Iterable[str] = COMPARED) -> list[str]:
    """Those of the modes that can run here; what is missing is printed. Raises UserError when none of them can."""
    from bench.launch.launcher import resources

    modes = []
    for mode in (mode for mode in TRAINABLE if mode in among):
        why = unavailable(MODES[mode], config) or impossible(config, mode)
        if MODES[mode].needs and not why and config.hosts:
            try:
                resources(in_mode(config, mode))
            except RunFailed as error:
                why = f"is not on all machines: {error}"
        if why:
            console.print(f"left out: {mode} {why}")
        else:
            modes.append(mode)
    if not modes:
        raise UserError(f"none of MODES={','.join(among)} can run here: run `bench doctor`")
    return modes


def unavailable(info: ModeInfo, config: RunConfig) -> str:
    """Why a mode's ranks cannot be started here, after its name; "" where they can."""
    from bench.launch.engines import ENGINES

    if info.needs and importlib.util.find_spec(info.needs) is None:
        return f"needs {info.needs}, which is not installed: run `bench install-{info.needs}`"
    engine = ENGINES[info.launchers[0]]
    return engine.lacking(config) if hasattr(engine, "lacking") else ""


def throughput(record: Record) -> str:
    return f"{record.throughput:.1f} {record.workload.units}/s"


def last_accuracy(record: Record) -> str:
    return record.workload.metrics[0].words(record.top1) if record.top1 is not None else "not validated"
