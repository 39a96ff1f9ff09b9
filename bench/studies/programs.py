"""The configurations of a study: refuse ignored options, fill in this machine's defaults, print what will run; then the
same work under other modes, options or numbers of devices."""

import dataclasses
import importlib.util
from collections.abc import Iterable

from bench.config import gpu_defaults
from bench.config.fields import option_value
from bench.config.flags import refuse_others
from bench.config.hosts import where
from bench.config.modes import COMPARED, MODES, TRAINABLE, UPPER_BOUNDS, ModeInfo
from bench.config.options import FIELDS, KNOBS, UNSET, Parallel, RunConfig, of_training
from bench.config.resolve import launcher_of, tuned_options
from bench.config.workloads import work, workload_of
from bench.errors import RunFailed, UserError
from bench.record.view import Record

MODES_FLAG = {"--modes": {"help": f"only these ways to train, of {', '.join(TRAINABLE)} "
                          f"[{','.join(COMPARED)}]"}}  # fmt: skip
RECIPE_GLOBAL_BATCH = 64  # of studies that train by epochs
TRAINING = ("epochs", "lr_warmup_epochs", "target", "val_batch")  # the training options that they take
OF_SINGLE_RUNS = ("fault", "snapshots", "baselines", "profile", "launcher", "dist_url", "mistake")


def refuse(asked: RunConfig, *options: str) -> None:
    """Raise UserError for an option that this command would ignore."""
    refuse_others(asked, FIELDS.keys() - set(options), "belongs to single runs (`make bench`)")


def prepare(console, asked: RunConfig, trains: bool = False) -> RunConfig:
    """Refuse ignored options, fill in defaults, print what will run. trains: by epochs. Raises UserError."""
    from bench.launch.devices import device_notes  # a list of commands needs only the standard library
    from bench.launch.launcher import resolve_here

    refuse(asked, *(n for n in (*of_training(), *OF_SINGLE_RUNS) if not (trains and n in TRAINING)))
    config = dataclasses.replace(resolve_here(asked), baselines=False)
    steps = f"{config.warmup_steps} warm-up + {config.timed_steps} timed steps"
    if trains:
        steps = f"{config.epochs} epochs, learning rate {config.lr:g} ({config.schedule})"
    said = [
        *device_notes(asked),
        where(config) if config.hosts else "",
        "No GPU is used: CPU processes, or threads in dp, emulate devices; memory is host memory."
        if config.device == "cpu"
        else "",
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
    """``prepare`` for a suite that trains by epochs, with a global batch of RECIPE_GLOBAL_BATCH unless the user sets
    one, and on a GPU with TORCH_DEFAULTS=1: it compares accuracy, not speed."""
    refuse(asked, "mode", "timed_steps", "warmup_steps")
    if asked.per_device_batch is None:
        share = max(1, RECIPE_GLOBAL_BATCH // (asked.num_devices * asked.accumulate))
        asked = dataclasses.replace(asked, per_device_batch=share)
    config = prepare(console, dataclasses.replace(asked, mode="ddp", plain=True), trains=True)
    return dataclasses.replace(config, checkpoint=False)


def available(console, config: RunConfig, among: Iterable[str] = COMPARED) -> list[str]:
    """The modes that can run here; prints what is missing. Raises UserError if none can."""
    from bench.launch.launcher import resources

    modes = []
    for mode in (mode for mode in TRAINABLE if mode in among):
        why = unavailable_reason(MODES[mode], config) or impossible(config, mode)
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


def unavailable_reason(info: ModeInfo, config: RunConfig) -> str:
    """Why a mode's ranks cannot be started here, to follow its name; "" if they can."""
    from bench.launch.engines import ENGINES

    if info.needs and importlib.util.find_spec(info.needs) is None:
        return f"needs {info.needs}, which is not installed: run `bench install-{info.needs}`"
    engine = ENGINES[info.launchers[0]]
    return engine.unavailable_reason(config) if hasattr(engine, "unavailable_reason") else ""


def throughput(record: Record) -> str:
    return f"{record.throughput:.1f} {record.workload.units}/s"


def last_accuracy(record: Record) -> str:
    return record.workload.metrics[0].words(record.top1) if record.top1 is not None else "not validated"


def modes_of(named: str | None) -> list[str]:
    """The modes that MODES names, in the table's order. Raises UserError for a name that is not a training mode."""
    if named is None:
        return COMPARED
    asked = [name.strip() for name in named.split(",")]
    if unknown := [name for name in asked if name not in TRAINABLE]:
        raise UserError(f"MODES={named}: {unknown[0] or 'nothing'} is not a mode that trains: use some of "
                        f"{', '.join(TRAINABLE)}, separated by commas")  # fmt: skip
    return [mode for mode in TRAINABLE if mode in asked]


def in_mode(config: RunConfig, mode: str, **options) -> RunConfig:
    """The same global batches under another mode, by its own launcher, with its own backend options, and with these.
    single takes the whole global batch on one device."""
    info = MODES[mode]
    changes = {"mode": mode, "launcher": "auto", "dist_url": None}
    changes |= {name: UNSET[name] for name in KNOBS - info.knobs.keys()}
    changes |= tuned_options(config, mode)
    if info.one_process:
        changes["share_gpu"] = False
    if info.max_devices == 1:
        changes |= {"num_devices": 1, "per_device_batch": config.per_device_batch * config.num_devices}
    found = dataclasses.replace(config, **changes | options)
    found = dataclasses.replace(found, launcher=launcher_of(found))
    if config.threads and len(found.machines) < len(config.machines):  # only the cores of its machines
        share = config.threads * len(found.machines) // len(config.machines)
        found = dataclasses.replace(found, threads=max(1, share))
    return found


def in_passes(config: RunConfig, devices: int) -> RunConfig | None:
    """A program of one device that takes the global batch of N devices in N passes, so that it fits if the others do;
    None for other programs.

    >>> one = in_passes(RunConfig(mode="single", per_device_batch=2048), 8)
    >>> one.per_device_batch, one.accumulate, one.global_batch, in_passes(one, 1)
    (256, 8, 2048, None)
    """
    if MODES[config.mode].max_devices != 1 or devices < 2 or config.per_device_batch % devices:
        return None
    parts = {"per_device_batch": config.per_device_batch // devices, "accumulate": config.accumulate * devices}
    return dataclasses.replace(config, **parts)


def passes_in_words(config: RunConfig) -> str:
    return (
        f"{config.mode} does not fit into a device's memory in one pass: it takes its step in {config.accumulate} "
        f"passes of {config.per_device_batch}"
    )


def impossible(config: RunConfig, mode: str) -> str:
    info, machines = MODES[mode], config.machines
    if info.one_process and not info.max_devices and len(machines) > 1:
        return f"is one process on one machine, and these are {len(machines)}: {', '.join(m.name for m in machines)}"
    return ""


def measured_only() -> dict:
    """The options of a training, of faults and of snapshots at their defaults: for a run that only times steps."""
    return {name: UNSET[name] for name in (*of_training(), "fault", "snapshots")}


def baselines(config: RunConfig, out: str) -> list[RunConfig]:
    """One process on the same global batch, and N processes without communication: did distribution pay at all?"""
    config = dataclasses.replace(config, **measured_only() | {"out": out, "baselines": False})
    return [in_mode(config, mode) for mode in ("single", *UPPER_BOUNDS) if mode != config.mode]


def even_threads(config: RunConfig) -> RunConfig:
    """The threads that can be divided evenly among one process per device, for all modes: seven cores and two processes
    give three threads each, and single gets six."""
    n = config.num_devices
    return dataclasses.replace(config, threads=max(config.threads // n * n, 1 if n > config.threads else n))


def bounds_of(config: Parallel) -> list[str]:
    """The baselines to measure with the modes: on a CPU with several workers, where they slow down too."""
    return UPPER_BOUNDS if config.device == "cpu" and config.num_devices > 1 else []


def own_seed(config: RunConfig, number: int) -> RunConfig:
    return dataclasses.replace(config, seed=config.seed + number)


def profiled(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    return {mode: dataclasses.replace(in_mode(even_threads(config), mode), profile=True) for mode in modes}


def label_of(mode: str, point: dict) -> str:
    return " ".join([mode, *(f"{name}={option_value(value)}" for name, value in point.items())])
