"""From one config to the programs of a study: the same work under other modes, options or numbers of devices."""

import dataclasses

from bench.config.modes import COMPARED, MODES, TRAINABLE, UPPER_BOUNDS
from bench.config.options import KNOBS, UNSET, Parallel, RunConfig, of_training
from bench.config.resolve import launcher_of, tuned_options
from bench.errors import UserError

MODES_FLAG = {"--modes": {"help": f"only these ways to train, of {', '.join(TRAINABLE)} "
                          f"[{','.join(COMPARED)}]"}}  # fmt: skip


def modes_of(named: str | None) -> list[str]:
    """The modes that MODES names, in the table's order. Raises UserError for a name that is no way to train."""
    if named is None:
        return COMPARED
    asked = [name.strip() for name in named.split(",")]
    if unknown := [name for name in asked if name not in TRAINABLE]:
        raise UserError(f"MODES={named}: {unknown[0] or 'nothing'} is no way to train: name some of "
                        f"{', '.join(TRAINABLE)}, with commas between")  # fmt: skip
    return [mode for mode in TRAINABLE if mode in asked]


def in_mode(config: RunConfig, mode: str, **options) -> RunConfig:
    """The same global batches under another mode, by its own launcher, with the backend options it has, and with these.
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
    if config.threads and len(found.machines) < len(config.machines):  # it has only the cores of its machines
        share = config.threads * len(found.machines) // len(config.machines)
        found = dataclasses.replace(found, threads=max(1, share))
    return found


def in_passes(config: RunConfig, devices: int) -> RunConfig | None:
    """A program of one device that takes the global batch of so many devices in as many passes, so that it fits where
    the others do; None where it is not such a program.

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
    """As many threads as can be shared out evenly over a process per device, for all modes: seven cores and two
    processes are three threads each, and single gets six."""
    n = config.num_devices
    return dataclasses.replace(config, threads=max(config.threads // n * n, 1 if n > config.threads else n))


def bounds_of(config: Parallel) -> list[str]:
    """The upper bounds that are measured with the modes: on a CPU with several workers, where they fall too."""
    return UPPER_BOUNDS if config.device == "cpu" and config.num_devices > 1 else []


def own_seed(config: RunConfig, number: int) -> RunConfig:
    return dataclasses.replace(config, seed=config.seed + number)


def profiled(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    return {mode: dataclasses.replace(in_mode(even_threads(config), mode), profile=True) for mode in modes}


def shown(value) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def label_of(mode: str, point: dict) -> str:
    return " ".join([mode, *(f"{name}={shown(value)}" for name, value in point.items())])
