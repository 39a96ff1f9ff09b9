"""Which options are fastest? Every combination of those given as lists; without a list, the mode's settings one at a
time."""

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator

from bench.analysis.certificate import FACTS, SOURCES, Rules, options, program
from bench.config.command_line import from_arguments, given_options, listed, read_option
from bench.config.fields import variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, GRID, RunConfig
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.studies.base import LOOKS, QUICK_ROUNDS, Flags, Plan, Study
from bench.studies.programs import label_of, prepare, unavailable_reason

MOST_CELLS, START_S = 64, 5  # the start of a run's processes takes longer
Cells = dict[str, RunConfig | UserError]  # label -> its options, or why they exclude each other


def read(args: argparse.Namespace) -> Cells:
    """Raises UserError for an invalid value of a list, and for too many combinations."""
    if args.modes and args.mode:
        raise UserError(f"MODE={args.mode} and MODES={args.modes} are the same option here: leave one of them out")
    args.mode = args.mode or args.modes
    axes = {name: values for name, text in given_options(args).items() if len(values := listed(FIELDS[name], text)) > 1}
    for name, values in axes.items():
        for value in values:
            read_option(FIELDS[name], value)
    count, rounds = math.prod(map(len, axes.values())), QUICK_ROUNDS if args.quick else SWEEP.rounds
    if count > MOST_CELLS:
        runs = count * {None: rounds, "auto": LOOKS[0]}.get(args.rounds, args.rounds)
        factors = " × ".join(f"{len(values)} {variable_of(FIELDS[name])}" for name, values in axes.items())
        took = f"{count} cells, {runs} runs, over {runs * START_S / 60:.0f} min"
        raise UserError(f"{factors} are {took}: at most {MOST_CELLS} cells; list fewer values, or sweep some options "
                        "first and the others with the best values of those")  # fmt: skip
    cells = {}
    for values in itertools.product(*axes.values()):
        cell = argparse.Namespace(**vars(args) | dict(zip(axes, values, strict=True)))
        point = {variable_of(FIELDS[name]).lower(): value.rpartition("/")[2]  # a record contains no path
                 for name, value in zip(axes, values, strict=True)}  # fmt: skip
        label = label_of_point({"mode": cell.mode or RunConfig.mode} | point)
        if label in cells:
            raise UserError(f"two values have the same name, {label}: give files of different names")
        try:
            cells[label] = from_arguments(cell)
        except UserError as error:
            if not axes:
                raise
            cells[label] = error
    return cells


def label_of_point(point: dict[str, str]) -> str:
    return " ".join([point["mode"], *(f"{name}={text}" for name, text in point.items() if name != "mode")])


def point_of(label: str) -> dict[str, str]:
    """
    >>> point_of("ddp batch=32 precision=bf16")
    {'mode': 'ddp', 'batch': '32', 'precision': 'bf16'}
    """
    mode, *words = label.split() or [""]
    return {"mode": mode} | dict(word.partition("=")[::2] for word in words)


def axes_of(labels: list[str]) -> dict[str, list[str]]:
    """The options that differ between cells -> their values, in order."""
    points = list(map(point_of, labels))
    values = {name: list(dict.fromkeys(point[name] for point in points)) for name in points[0]}
    return {name: each for name, each in values.items() if len(each) > 1}


def plans(console, cells: Cells, flags: Flags) -> Iterator[Plan]:
    """A value with which no cell can run is an error; other combinations that cannot run are left out."""
    from rich.console import Console  # not for a list of commands

    from bench.launch.devices import choose_device, require_memory

    grid, found, failed = len(cells) > 1, {}, {}
    if not grid:
        (asked,) = cells.values()
        cells = one_at_a_time(prepare(console, asked))
    for label, config in cells.items():
        try:
            if isinstance(config, UserError):
                raise config
            if grid:
                config = prepare(Console(quiet=True) if found else console, config).labelled(variant=GRID)
                if why := unavailable_reason(MODES[config.mode], config):
                    raise UserError(f"MODE={config.mode} {why}")
            if not config.hosts:  # what the launch of each would refuse
                choose_device(config)
                require_memory(config)
            found[label] = config
        except UserError as error:
            failed[label] = error
    for each in {pair: None for label in cells for pair in point_of(label).items()} if grid else ():
        theirs = [label for label in cells if each in point_of(label).items()]
        if failed.keys() >= {*theirs}:
            raise failed[theirs[0]]
    for label, error in failed.items():
        console.print(f"left out: {label}: {error}")
    if len(units := {workload_of(config).units for config in found.values()}) > 1:
        raise UserError(f"throughput in {' and '.join(sorted(units))} cannot be compared: give DATA of one kind")
    if any(config.compile and not config.warmup_steps for config in found.values()):
        raise UserError("WARMUP=0 would include compilation in the timed steps: use WARMUP=3 or more")
    yield Plan(SWEEP, found)


def one_at_a_time(config: RunConfig) -> Cells:
    """The run's own settings first, then each of its mode."""
    info, found = MODES[config.mode], {config.mode: config}
    if not info.sweep:
        swept = ", ".join(mode for mode, each in MODES.items() if each.sweep)
        raise UserError(f"MODE={config.mode} has no settings to sweep: use MODE={swept}; or give lists, BATCH=32,64")
    for point in [*info.sweep, *(info.sweep_on_gpu if config.device == "cuda" else ())]:
        try:
            setting = dataclasses.replace(config, **point)
        except UserError as error:
            setting = error
        if setting != config:
            found[label_of(config.mode, point)] = setting
    return found


# Only the machine and the code must not differ, and what a rank did must follow from these options.
STUDIED = {"gradient compression": ("mode", "compression"), "memory format": ("mode", "channels_last"),
           "precision": ("mode", "precision", "param_dtype", "reduce_dtype"),
           "activation checkpointing": ("mode", "activation_checkpointing"),
           "optimizer": ("mode", "optimizer", "momentum", "weight_decay", "fused")}  # fmt: skip
VARY = {*FACTS, *SOURCES, "passes of a step"} - {"machine", "code", "OpenMP wait policy"}
RULES = Rules(
    {name: ("it is swept", options(*STUDIED[name]) if name in STUDIED else program) for name in VARY},
    options=tuple(FIELDS),
)
SWEEP = Study(
    "sweep", "sweep", "Sweep", "Which options are fastest?",
    "every combination of the options given as lists, BATCH=32,64; without a list, settings of MODE one at a time",
    plans, group="explain", example="MODES=ddp,horovod BATCH=32,64,128 GPUS=2", named_by="MODES", auto=True,
    partial="any", read=read, flags={"--modes": {"help": "the same as MODE, as in ddp,horovod"}},
)  # fmt: skip
STUDIES = (SWEEP,)
