"""BATCH=max: the largest per-device batch that fits, found by short runs in fresh processes.

The first try is the prediction of `bench predict memory`, the second one is an eighth larger or smaller. Then the batch
is doubled or halved until one fits and a larger one does not, and the interval between them is halved.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.cli.actions.predict_memory import MOST_BATCH, available, largest_here, memory_limit, most_examples
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import BenchError, ExitCode, RunFailed, UserError, shortened
from bench.launch.launcher import launch
from bench.measure import cgroup
from bench.measure.nvml import GIB
from bench.record.read import load
from bench.record.view import Record
from bench.studies.programs import measured_only

MAX = "max"
TRY_S = 300.0  # limit of a try without progress
SHORT_RUN = {"warmup_steps": 1, "timed_steps": 2, "profile": False, "memory": False, "watch": False, "replicas": False,
             "baselines": False, "dist_url": None}  # fmt: skip
SPARE = 0.05  # share of a CPU's limit that a try must leave: memory differs by 3 % between runs, and grows a little
Programs = Callable[[RunConfig], dict[str, RunConfig]]


def take_max(args) -> bool:
    """Whether BATCH=max was given. In ``args`` BATCH is then left open."""
    given = getattr(args, "per_device_batch", None) == MAX
    if given:
        args.per_device_batch = None
    return given


def with_largest_batch(console: Console, asked: RunConfig, programs: Programs) -> RunConfig:
    """``asked`` with the largest batch that fits in all its programs (asked -> resolved configs by name). Raises
    UserError where no limit is known, BenchError with FOUND where not even a batch of 1 fits, and the failure of a try
    that failed for another reason."""
    programs(dataclasses.replace(asked, per_device_batch=1))  # refuses here, before any try, what needs a multiple
    configs = searched(programs(asked))
    for config in configs.values():
        require_limit(config)
    starts = {name: predicted(config) for name, config in configs.items()}
    ballast = hold_spare(next(iter(configs.values())))  # until this function returns
    batch, tries = min(most for _, most in starts.values()), []
    folder = Path(asked.out) / f"batch-{time.strftime('%Y%m%d-%H%M%S')}"
    keep = False
    try:
        for name in sorted(starts, key=lambda name: starts[name]):

            def fits(size: int, name=name) -> bool:
                config = programs(dataclasses.replace(asked, per_device_batch=size))[name]
                peak, why = try_run(config, folder)
                tries.append({"program": name, "batch": size, "fitted": not why, "peak_gib": peak})
                near = f"leaves less than {100 * SPARE:g} % free" if peak else "does not fit"
                said = (near if why else "fits") + (f", peak {peak:.2f} GiB" if peak else "")
                console.print(f"BATCH=max: {name} with BATCH={size} {said}")
                if why and size == 1:
                    raise too_large(config, why)
                return not why

            batch = bisect(fits, batch if tries else starts[name][0], batch)
    except RunFailed as error:
        keep = error.exit_code != ExitCode.INTERRUPTED
        raise
    finally:
        del ballast
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return dataclasses.replace(asked, per_device_batch=batch).labelled(batch_search=json.dumps(tries))


def bisect(fits: Callable[[int], bool], start: int, most: int) -> int:
    """The largest batch up to ``most`` that fits, to within 5 %; 0 if none does.

    >>> tried = []
    >>> bisect(lambda batch: tried.append(batch) or batch <= 110, 100, 1000), tried
    (108, [100, 112, 104, 108])
    """
    start = batch = max(1, min(start, most))
    low, high = 0, most + 1
    while True:
        low, high = (batch, high) if fits(batch) else (low, batch)
        if high - low <= max(1, low // 20):
            return low
        if high > most:
            batch = min(most, low + max(1, low // 8) if low == start else 2 * low)
        elif low == 0:
            batch = high - max(1, high // 8) if high == start else high // 2
        else:
            batch = (low + high) // 2
            batch -= batch % 8 if batch - batch % 8 > low else 0


def searched(configs: dict[str, RunConfig]) -> dict[str, RunConfig]:
    """Without single where others use several devices: if its global batch does not fit, it takes as many passes."""
    devices = max(config.num_devices for config in configs.values())
    return {name: config for name, config in configs.items() if devices == 1 or MODES[config.mode].max_devices != 1}


def require_limit(config: RunConfig) -> None:
    """Raise UserError if tries would have no limit, or measure something else than the run needs."""
    if config.evaluate or config.ema or config.swa:
        raise UserError("BATCH=max tries training steps without EVALUATE, EMA and SWA: give BATCH as a number")
    if config.device == "cuda":
        return
    given = config.memory_gib
    if not given and (config.hosts or not cgroup.memory_limit()):
        raise UserError("BATCH=max needs a limit on a CPU: add the memory of one device in GiB, as in MEMORY_GIB=1")
    if given and not config.hosts and given * config.num_devices * GIB > available():
        raise UserError(f"MEMORY_GIB={given:g} for each of {config.num_devices} devices, but this machine has "
                        f"{available() / GIB:.1f} GiB available: use a smaller one")  # fmt: skip


def hold_spare(config: RunConfig) -> bytes:
    """Memory that tries do not get where the control group is the limit: the kernel ends them, nothing else does."""
    limit = cgroup.memory_limit() if config.device == "cpu" and not config.memory_gib else 0
    return b"x" * int(SPARE * (limit or 0))


def predicted(config: RunConfig) -> tuple[int, int]:
    """The batch of the first try, and the largest that the data have."""
    try:
        return largest_here(config).batch, most_examples(config)
    except UserError:  # of a model of the user's: a step that depends on its data
        return config.per_device_batch, MOST_BATCH


def try_run(config: RunConfig, folder: Path) -> tuple[float | None, str]:
    """The peak memory of the fullest device in a short run, if it ended well, and "" or why it does not fit."""
    changes = measured_only() | SHORT_RUN | {"out": str(folder), "timeout": min(config.timeout, TRY_S)}
    try:
        record = load(launch(dataclasses.replace(config, **changes)))
    except RunFailed as error:
        if (error.failure or {}).get("out_of_memory"):
            return None, error.failure["message"]
        if error.exit_code != ExitCode.INTERRUPTED:
            error.args = (f"BATCH=max: the try with BATCH={config.per_device_batch} failed: {error}",)
        raise
    peak, limit = peak_of(record), memory_limit(config)[0] / GIB
    near = config.device == "cpu" and config.memory_gib and peak > (1 - SPARE) * limit
    return peak, f"{peak:.2f} GiB at its peak, and a longer run takes more" if near else ""


def peak_of(record: Record) -> float:
    sources = ("nvml_process", "torch_reserved") if record.on_gpu else ("rss_hwm", "pss")
    return max(next((gib for source in sources if (gib := device.get(source))), 0.0) for device in record.peak_memory)


def too_large(config: RunConfig, why: str) -> BenchError:
    error = BenchError(
        f"BATCH=max: MODE={config.mode} with BATCH=1 does not {memory_limit(config)[1]} ({shortened(why, 300)}): use "
        "more memory, a smaller MODEL or smaller examples, or MODE=fsdp on more devices"
    )
    error.exit_code = ExitCode.FOUND
    return error
