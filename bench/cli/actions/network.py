"""`bench network`: messages and collectives between the ranks, with every available backend, and matrix products."""

import dataclasses
from pathlib import Path

from bench.analysis import tables
from bench.cli.base import warn
from bench.config.command_line import from_arguments
from bench.config.options import RunConfig
from bench.errors import ExitCode, RunFailed, UserError
from bench.launch.devices import choose_device, device_notes
from bench.launch.launcher import launch, resolve_here
from bench.launch.progress_bar import LiveProgress
from bench.measure import node
from bench.studies.programs import unavailable_reason
from bench.studies.rounds import new_suite
from bench.tasks.network import plan as plans
from bench.tasks.network import result
from bench.tasks.network.plan import Plan
from bench.tasks.network.record import BACKENDS, Backend, NetworkRecord, load

ROUNDS, MINUTES = 10, 5.0


def run(args) -> int:
    """Measure one backend after the other; print tables and a summary, draw a figure. The folder is the last line."""
    console, asked = tables.terminal(), check(from_arguments(args))
    sizes = plans.parse_sizes(args.sizes or plans.SIZES)
    rounds, budget_s = args.repeats or ROUNDS, 60 * (args.max_minutes or MINUTES)
    tables.print_lines(console, device_notes(asked))
    configs = chosen(console, asked, args.backends)
    suite, label = new_suite("network"), node.network()
    folder = Path(asked.out) / suite
    console.print(f"{', '.join(configs)} on {asked.num_devices} ranks{': ' + label if label else ''}; "
                  f"{plans.in_bytes(sizes[0])} to {plans.in_bytes(sizes[-1])}, {rounds} rounds, at most "
                  f"{budget_s / 60:g} min of measuring")  # fmt: skip
    records, failed = [], None
    for backend, config in configs.items():
        plan = Plan(sizes, rounds, budget_s / len(configs), backend)
        config = dataclasses.replace(config, out=str(folder), baselines=False)
        config = config.labelled(study="network", suite=suite, program=backend, probe=plan.text())
        try:
            with LiveProgress(config, console, backend) as watch:
                records.append(load(launch(config, watch)))
        except RunFailed as error:
            if error.exit_code == ExitCode.INTERRUPTED:
                raise
            failed = RunFailed(f"{backend}: {error}")
            warn(f"bench: {failed}")
    if not records:
        raise failed
    show(console, records)
    from bench.analysis import drawing

    drawing.save_all(result.figures(records), folder)
    print(f"records and pictures: {folder}", flush=True)
    return ExitCode.FAILED if failed else ExitCode.DONE


def check(asked: RunConfig) -> RunConfig:
    """Raise UserError for a single rank."""
    if asked.num_devices < 2:
        raise UserError(f"GPUS={asked.num_devices}: communication needs at least two ranks: use GPUS=2 or more")
    return asked


def chosen(console, asked: RunConfig, names: str | None) -> dict[str, RunConfig]:
    """Backend -> the config of its ranks: the named backends, or all available ones; prints why one is left out. Raises
    UserError for a named backend that is unknown or not available."""
    device = choose_device(asked)
    wanted = list(BACKENDS) if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in BACKENDS]:
        raise UserError(f"unknown BACKENDS={unknown[0]}: choose from {', '.join(BACKENDS)}")
    configs = {}
    for backend in dict.fromkeys(wanted):
        line = BACKENDS[backend]
        if why := why_backend_missing(line, device, asked):
            if names is not None:
                raise UserError(f"BACKENDS={backend} {why}")
            if line.device != "cuda" or device == "cuda":
                console.print(f"left out: {backend} {why}")
            continue
        configs[backend] = resolve_here(of_backend(asked, line))
    if not configs:
        raise UserError("no backend is available: use BACKENDS=gloo")
    return configs


def of_backend(asked: RunConfig, backend: Backend) -> RunConfig:
    """The config for the ranks of one backend. Gloo is measured between CPUs, also on a machine with GPUs."""
    changes = {"mode": backend.mode}
    if backend.device and not asked.share_gpu:
        changes |= {"device": backend.device} | ({"gpu_ids": None} if backend.device == "cpu" else {})
    if "torchrun" not in backend.info.launchers:
        changes |= {"launcher": "auto", "dist_url": None}
    return dataclasses.replace(asked, **changes)


def why_backend_missing(backend: Backend, device: str, asked: RunConfig) -> str:
    """Why a backend is not available, to follow its name; "" if it is."""
    if backend.device == "cuda" and (device == "cpu" or asked.share_gpu):
        return "needs one GPU per rank, but this run uses no GPU"
    return unavailable_reason(backend.info, dataclasses.replace(asked, device=device))


def show(console, records: list[NetworkRecord]) -> None:
    for line in result.provenance_lines(records):
        console.print(line, style="bold")
    for grid in result.grids(records):
        tables.print_captioned(console, grid)
    tables.print_lines(console, result.answer(records))
    for line in result.disturbed(records):
        tables.print_named(console, "warning", line)
