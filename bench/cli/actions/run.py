"""`bench run`: one benchmark, and on a CPU the two baselines that show whether distribution pays off. On GPUs
BASELINES=1 runs them, and the same mode with TORCH_DEFAULTS=1."""

import dataclasses
import os
import time
from pathlib import Path

from rich.console import Console

from bench.analysis import tables
from bench.cli.actions import joined
from bench.cli.actions.batch_search import take_max, with_largest_batch
from bench.cli.actions.run_output import announce, copy_partial_results, finish
from bench.config.command_line import from_arguments, given_options
from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.errors import RunFailed
from bench.launch.devices import device_notes, unused_gpus
from bench.launch.launcher import launch, resolve_here
from bench.launch.progress_bar import LiveProgress
from bench.launch.seat import seat_of
from bench.record.describe import did_not_fit, epoch_line
from bench.record.read import load
from bench.record.view import Record
from bench.storage import remote
from bench.studies.programs import baselines, in_passes, measured_only, passes_in_words


def run(args) -> int:
    """Run it, print a table, and the record's path as the last line. COPY_TO gets the run's folder whatever happens."""
    if seat := seat_of(os.environ):
        return joined.join(args, seat)
    find_batch = take_max(args)
    asked, console = from_arguments(args), tables.terminal()
    if find_batch:
        asked = with_largest_batch(console, asked, lambda asked: {asked.mode: resolve_here(asked)})
    config = resolve_here(asked)
    tables.print_lines(console, device_notes(asked))
    announce(console, config)
    if "num_devices" not in given_options(args) and (more := unused_gpus(config)):
        console.print(more)
    if config.copy_to:
        remote.Remote(config.copy_to, config.timeout)  # report a wrong address before the training, not after
    path, others, began = None, [], time.monotonic()
    try:
        path = run_live(console, config)
        if config.baselines and not config.epochs and not config.evaluate:
            out = str(path.parent / "baselines")
            programs = (baselines(config, out) if config.num_devices > 1 else []) + plain(asked, config, out)
            others = run_baselines(console, programs, config.num_devices, time.monotonic() - began)
    except Exception as error:
        copy_partial_results(config, path.parent if path else getattr(error, "run_dir", None))
        raise
    return finish(console, config, path, others)


def plain(asked: RunConfig, config: RunConfig, out: str) -> list[RunConfig]:
    """The run with TORCH_DEFAULTS=1, where options were chosen for the GPU. Its record goes below ``out``."""
    if not config.label.gpu_defaults:
        return []
    changes = {"plain": True, "baselines": False, "dist_url": None}
    changes |= measured_only() | {"out": out}
    return [resolve_here(dataclasses.replace(asked, **changes).labelled(program=f"{config.mode} plain"))]


def run_baselines(console: Console, programs: list[RunConfig], devices: int, seconds: float) -> list[Record]:
    """Run each baseline once; one that does not fit continues in passes, or is left out. seconds: the duration of the
    run itself."""
    found = []
    if any(each.plain for each in programs):
        names = ", ".join(each.label.program or each.mode for each in programs)
        console.print(
            f"BASELINES=1: {len(programs)} more runs ({names}) with the same number of steps; the first took "
            f"{seconds:.0f} s, and a step with TORCH_DEFAULTS=1 takes longer"
        )  # fmt: skip
    for each in programs:
        for config in filter(None, [each, in_passes(each, devices)]):
            if config is not each:
                console.print(passes_in_words(config))
            try:
                found.append(load(run_live(console, config)))
                break
            except RunFailed as error:
                if not did_not_fit(error.failure):
                    raise
        else:
            console.print(f"left out: {each.mode} with {each.per_device_batch} {workload_of(each).batched} on a "
                          "device did not fit into device memory: use a smaller BATCH")  # fmt: skip
    return found


def run_live(console: Console, config: RunConfig) -> Path:
    """Launch one config and show its progress, each epoch as soon as it has ended."""
    workload = workload_of(config)
    with LiveProgress(config, console, config.mode, lambda row: epoch_line(row, workload)) as watch:
        return launch(config, watch)
