"""Suites: functions that return lists of configs. What belongs together is decided here and nowhere else."""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.config.modes import MODES
from bench.config.options import KNOBS, UNSET, RunConfig, tuned_options
from bench.errors import UserError

WAYS = [mode for mode, info in MODES.items() if not info.baseline]  # to train; the bound is none
BOUNDS = [mode for mode, info in MODES.items() if info.baseline]


def order(names: list[str], number: int) -> list[str]:
    """The order of a round: two by two rounds are rotated further, the second of the two backwards, so that a machine
    that warms up or is disturbed favours nobody. After 2 × len(names) rounds everybody has stood everywhere twice.

    >>> [order(["a", "b", "c"], number) for number in range(4)]
    [['a', 'b', 'c'], ['c', 'b', 'a'], ['b', 'c', 'a'], ['a', 'c', 'b']]
    """
    start = number // 2 % len(names)
    names = names[start:] + names[:start]
    return names[::-1] if number % 2 else names


def in_mode(config: RunConfig, mode: str) -> RunConfig:
    """The same global batches under another mode, by that mode's own launcher, with the engine options it has.

    single has one device, which takes the whole global batch; only modes of several processes can share a GPU.
    """
    info = MODES[mode]
    changes = {"mode": mode, "launcher": info.launchers[0], "dist_url": None}
    changes |= {name: UNSET[name] for name in KNOBS - info.knobs.keys()}
    changes |= tuned_options(config, mode)
    if info.one_process:
        changes["share_gpu"] = False
    if info.max_devices == 1:
        changes |= {"num_devices": 1, "per_device_batch": config.global_batch}
    return dataclasses.replace(config, **changes)


# Options of training that a run which only measures steps does without.
MEASURED_ONLY = {name: UNSET[name] for name in (
    "epochs", "lr_warmup_epochs", "fault", "snapshots", "checkpoint", "checkpoint_steps", "resume", "evaluate",
    "target", "track", "copy_to",
)}  # fmt: skip


def baselines(config: RunConfig, run_dir: Path) -> list[RunConfig]:
    """What decides whether distribution paid at all: one process with all the threads on the same global batch, and N
    processes without communication (the bound). Their records go below the run's own folder."""
    plain = MEASURED_ONLY | {"out": str(run_dir / "baselines"), "baselines": False}
    config = dataclasses.replace(config, **plain)
    return [in_mode(config, mode) for mode in ("single", "independent") if mode != config.mode]


def verification(config: RunConfig, norm: str) -> dict[str, RunConfig]:
    """Every way to train, on the same batches with the same kind of norm, by name.

    With batch norm a control joins: single again with one thread, which changes nothing but the order of its sums.
    """
    config = dataclasses.replace(config, norm=norm)
    runs = {mode: in_mode(config, mode) for mode, info in MODES.items() if not info.baseline}
    if norm == "batch":
        runs["single, 1 thread"] = dataclasses.replace(runs["single"], threads=1)
    return runs


# What an engine's options are on CUDA streams is not what they are on a CPU: each is run once.
ON_GPU = {
    "ddp": [{"overlap": False}, {"compression": "fp16"}, {"compression": "powersgd"}, {"sync": False},
            {"gradient_as_bucket_view": True, "static_graph": True}],
    "horovod": [{"overlap": False}, {"compression": "fp16"}, {"sync": False}],
}  # fmt: skip


def gpu_check(config: RunConfig, num_gpus: int) -> list[RunConfig]:
    """Every mode on every GPU, in float32, TF32 and bf16; with the timeline of a step; every option of the engines;
    with one GPU, ddp's ranks sharing it as well."""
    config = dataclasses.replace(config, num_devices=num_gpus, baselines=False)
    runs = [in_mode(dataclasses.replace(config, precision=p), m) for p in ("fp32", "tf32", "bf16") for m in MODES]
    runs += profiled(config, WAYS).values()
    runs += [dataclasses.replace(in_mode(config, m), **knobs) for m, several in ON_GPU.items() for knobs in several]
    if num_gpus == 1:
        shared = dataclasses.replace(config, num_devices=2, share_gpu=True, mode="ddp", launcher="torchrun")
        runs.append(shared)
    return runs


# --- suites that run in rounds: role -> config, the base first ---------------------------------------------------


def even_threads(config: RunConfig) -> RunConfig:
    """As many threads as can be shared out evenly over a process a device, for all modes: seven cores and two processes
    are three threads each, and single gets six."""
    n = config.num_devices
    return dataclasses.replace(config, threads=max(config.threads // n * n, 1 if n > config.threads else n))


def comparison(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every mode on the same global batches, single first; on a CPU the bound too. config: resolved."""
    config = even_threads(config)
    bounds = BOUNDS if config.device == "cpu" and config.num_devices > 1 else []
    return {mode: in_mode(config, mode) for mode in [*modes, *bounds]}


def scaling(config: RunConfig, modes: list[str], max_devices: int, strong: bool) -> dict[str, RunConfig]:
    """Every mode at 1, 2, 4, … devices: the batch per device stays (weak) or the global batch does (strong).

    config: resolved; its batch is that of one device when there are max_devices. On a CPU every device is given the
    same number of threads, and the bound is measured too: with fewer cores than workers it falls, and that fall is
    nobody's communication. Raises UserError when a global batch cannot be shared out evenly.
    """
    threads = max(1, config.threads // max_devices)
    roles = {}
    for n in device_counts(max_devices):
        batch = config.per_device_batch * max_devices // n if strong else config.per_device_batch
        if strong and batch * n != config.per_device_batch * max_devices:
            raise UserError(
                f"strong scaling: the global batch, BATCH={config.per_device_batch} × {max_devices}, cannot be shared "
                f"out to {n} devices: choose a BATCH that makes it divisible by {device_counts(max_devices)}"
            )
        here = dataclasses.replace(config, mode="ddp", num_devices=n, per_device_batch=batch, baselines=False,
                                   threads=threads * n if config.device == "cpu" else config.threads)  # fmt: skip
        bounds = BOUNDS if config.device == "cpu" and n > 1 else []
        chosen = [m for m in [*modes, *bounds] if n <= (MODES[m].max_devices or n)]
        roles |= {f"{mode} {n}": in_mode(here, mode) for mode in chosen}
    return roles


def device_counts(most: int) -> list[int]:
    """Powers of two up to ``most``, and ``most`` itself.

    >>> device_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def breakdown(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every mode, and the same without its gradient exchange: the difference is the communication that is exposed."""
    runs = {mode: in_mode(even_threads(config), mode) for mode in modes}
    silent = [mode for mode in modes if "sync" in MODES[mode].knobs]
    return runs | {f"{mode} no_sync": dataclasses.replace(runs[mode], sync=False) for mode in silent}


def accuracy(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every way to train, trained to the end; single first. The bound trains no model."""
    return {mode: in_mode(even_threads(config), mode) for mode in modes}


def unsynced(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Replicas that are made equal at the start beside replicas that are not, in every mode that can forget it, and as
    the control every mode of one process on several devices, which has one set of weights.

    Where rank 0's buffers are sent to all, a further program leaves each rank its own.
    """
    config, roles = even_threads(config), {}
    for mode in (mode for mode in modes if "init_sync" in MODES[mode].knobs):
        roles[mode] = in_mode(config, mode)
        apart = dataclasses.replace(roles[mode], init_sync=False)
        roles[f"{mode} unsynced"] = apart
        if "broadcast_buffers" in MODES[mode].knobs:
            roles[f"{mode} unsynced own buffers"] = dataclasses.replace(apart, broadcast_buffers=False)
    controls = [mode for mode in modes if MODES[mode].one_process and MODES[mode].max_devices != 1]
    return roles | {mode: in_mode(config, mode) for mode in controls}


def own_seed(config: RunConfig, number: int) -> RunConfig:
    """A config in round ``number``, counted from 0: every round has a seed of its own, the same for all programs.

    >>> own_seed(RunConfig(seed=40), 2).seed
    42
    """
    return dataclasses.replace(config, seed=config.seed + number)


def profiled(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """One run a mode whose last step goes through torch.profiler: the timeline of a step."""
    return {mode: dataclasses.replace(in_mode(even_threads(config), mode), profile=True) for mode in modes}


FORMATS = [{"channels_last": True}, {"precision": "bf16"}, {"channels_last": True, "precision": "bf16"}]
SWEEPS = {  # a grid for the heat map, if any, and single settings; one process has no engine, but options of training
    "single": ({}, [*FORMATS, {"compile": True}, {"compile": True, "precision": "bf16"}]),
    "dp": ({}, FORMATS),  # what it copies every step cannot be compiled
    "ddp": (
        {"bucket_cap_mb": (1.0, 5.0, 25.0, 100.0), "gradient_as_bucket_view": (False, True)},
        [{"static_graph": True}, {"overlap": False}, {"broadcast_buffers": False}, {"compression": "fp16"},
         {"compression": "bf16"}, {"compression": "powersgd"}],
    ),
    "horovod": (
        {"fusion_mb": (1.0, 16.0, 128.0), "cycle_time_ms": (1.0, 5.0, 25.0)},
        [{"overlap": False}, {"compression": "fp16"}],  # autotune searches for hundreds of steps: a run of its own
    ),
}  # fmt: skip


def knobs(config: RunConfig) -> dict[str, RunConfig]:
    """The settings of one engine, or of training where there is none, each as a role of its own, after the run's own.

    Raises UserError when the mode has no settings.
    """
    if config.mode not in SWEEPS:
        raise UserError(f"MODE={config.mode} has no settings to sweep: use MODE={', '.join(SWEEPS)}")
    grid, single = SWEEPS[config.mode]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()) if grid]
    return {config.mode: config} | {
        f"{config.mode} {' '.join(f'{name}={shown(value)}' for name, value in point.items())}":
        dataclasses.replace(config, **point)
        for point in points + single
    }  # fmt: skip


def shown(value) -> str:
    """A setting as a person would type it.

    >>> shown(True), shown(25.0), shown("fp16")
    ('1', '25', 'fp16')
    """
    return f"{value:g}" if isinstance(value, (int, float)) else value


# --- replays: an unfairness of the field on purpose --------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """base: what is compared with. fair and unfair: the same program, treated alike and not. change: what the unfair
    one gets, and where it was seen. moves: the direction in which the verdict on it moves, by device: "slower",
    "faster", or "" where no direction is known beforehand."""

    base: str
    program: str
    change: str
    unfair: Callable[[RunConfig], RunConfig]
    moves: dict[str, str]
    common: dict  # what all three runs get where the user says nothing: so that there is something to be seen


def change(**values) -> Callable[[RunConfig], RunConfig]:
    """A function that changes these options of a config."""
    return lambda config: dataclasses.replace(config, **values)


REPLAYS = {
    "dp-workers": Replay(
        "ddp", "dp", "one loader worker for all devices, where the others have as many as they have ranks",
        change(workers=1), {"cpu": "slower", "cuda": "slower"},
        {"data": "digits", "storage_ms": 8.0},  # on two CPU cores one worker is too slow for that, and two are not
    ),
    "horovod-fp16": Replay(
        "ddp", "horovod", "Horovod alone sends its gradients in 16 bits: half the bytes, for two conversions",
        change(compression="fp16"), {"cpu": "slower", "cuda": "faster"}, {},  # on one host nothing is saved
    ),
    "ddp-barrier": Replay(
        "single", "ddp", "DDP alone has a barrier and three reductions that the host waits for, every step",
        change(step_barrier=True), {"cpu": "slower", "cuda": "slower"},
        # It costs a millisecond or two, and is seen where a step takes few of them and has little to send.
        {"model": "shufflenet_v2_x0_5", "image_size": 32, "per_device_batch": 2, "timed_steps": 300},
    ),
    "item-sync": Replay(
        "single", "ddp", "loss.item() every step: the host waits for the device. A CPU step waits anyway",
        change(item_sync=True), {"cpu": "", "cuda": "slower"}, {},
    ),
    "batch-grows": Replay(
        "single", "ddp", "every rank takes the batch that single takes in all: the global batch grows with the ranks",
        lambda config: dataclasses.replace(config, per_device_batch=config.global_batch),
        {"cpu": "faster", "cuda": "faster"}, {},
    ),
    "nothing": Replay(
        "ddp", "ddp", "nothing: the same program three times, the control", change(), {"cpu": "", "cuda": ""}, {},
    ),
}  # fmt: skip


def replay(config: RunConfig, name: str) -> dict[str, RunConfig]:
    """The three roles of a replay: base, fair, unfair. config: resolved. Raises UserError when it would change nothing,
    or when it needs another workload."""
    case = REPLAYS[name]
    if "storage_ms" in case.common:
        if config.data == "synthetic" or config.workers:
            raise UserError(f"REPLAY={name} is about the loader: synthetic data have none, and it sets WORKERS itself")
        config = dataclasses.replace(config, workers=config.num_devices)
    config = even_threads(config)
    fair = in_mode(config, case.program)
    unfair = case.unfair(fair)
    if unfair == fair and name != "nothing":
        raise UserError(f"REPLAY={name} changes nothing with GPUS={config.num_devices}: use GPUS=2 or more")
    return {f"base: {case.base}": in_mode(config, case.base), f"fair: {case.program}": fair,
            f"unfair: {case.program}": unfair}  # fmt: skip
