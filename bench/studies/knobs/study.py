"""Which setting makes it faster? Each setting of one backend, or of training, against the settings of the run."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

from bench.analysis.certificate import Rules, options, program
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import label_of, prepare

COMPILE_NOTE = (
    "torch.compile works during the first untimed step, a minute on a small CPU, and later rounds find its work in a "
    "cache: no timed step has any of it."
)


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    from bench.launch.devices import choose_device  # a list of commands needs only the standard library

    config, found = prepare(console, asked), {}
    for label, setting in programs(config, console.print).items():
        try:
            if not config.hosts:  # each launch needs them for devices and precision
                choose_device(setting)
            found[label] = setting
        except UserError as error:
            console.print(f"left out: {label}: {error}")
    if any(setting.compile for setting in found.values()):
        if not config.warmup_steps:
            raise UserError("WARMUP=0 would include compilation in the timed steps: use WARMUP=3 or more")
        console.print(COMPILE_NOTE)
    yield Plan(KNOBS, found)


def programs(config: RunConfig, say: Callable[[str], None] = lambda sentence: None) -> dict[str, RunConfig]:
    """The run's own settings first, then each of its mode; ``say`` gets the reason if one is left out."""
    info = MODES[config.mode]
    if not info.sweep and not info.single:
        swept = [mode for mode, each in MODES.items() if each.sweep or each.single]
        raise UserError(f"MODE={config.mode} has no settings to sweep: use MODE={', '.join(swept)}")
    sweep, single = info.sweep, info.single
    if config.device == "cuda":
        sweep, single = sweep | info.sweep_on_gpu, single + info.single_on_gpu
    crossed = itertools.product(*sweep.values()) if sweep else ()
    points = [dict(zip(sweep, values, strict=True)) for values in crossed]
    found = {config.mode: config}
    for point in [*points, *single]:
        label = label_of(config.mode, point)
        try:
            setting = dataclasses.replace(config, **point)
        except UserError as error:
            say(f"left out: {label}: {error}")
            continue
        if setting != config:
            found[label] = setting
    return found


STUDIED, THEY = "it is the setting under study", "they are the setting under study"
RULES = Rules(
    {
        "gradient compression": (STUDIED, program),
        "buffers": (THEY, program),
        "precision": (STUDIED, options("precision")),
        "memory format": (STUDIED, options("channels_last")),
        "compiler": (STUDIED, options("compile", "compile_mode")),
        "activation checkpointing": (STUDIED, options("activation_checkpointing")),
        "optimizer": (STUDIED, options("fused")),
    },
    options=("precision", "fused"),
)
KNOBS = Study(
    "knobs", "sweep", "Knobs", "Which setting makes it faster?",
    "one setting at a time, such as DDP's bucket size or torch.compile: which makes the step faster?", plans,
    group="explain", example="MODE=ddp GPUS=2", named_by="MODE", auto=True,
)  # fmt: skip
STUDIES = (KNOBS,)
