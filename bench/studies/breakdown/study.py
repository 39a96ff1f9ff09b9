"""Breakdown of step time and memory: every mode, the same without its gradient exchange, and one profiled step."""

import dataclasses
from collections.abc import Iterator

from bench.analysis.certificate import Rules, options
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import MODES_FLAG, even_threads, in_mode, modes_of, prepare_modes, profiled, refuse

RULES = Rules({"gradient": ("a run without exchange shows what the exchange costs", options("sync"))})


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    refuse(asked, "mode")
    config, modes = prepare_modes(console, asked, modes_of(flags.modes))
    yield Plan(BREAKDOWN, programs(config, modes), extra=profiled(config, modes))


def programs(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every mode, and the same without its gradient exchange: the difference is the exposed communication."""
    runs = {mode: in_mode(even_threads(config), mode) for mode in modes}
    silent = [mode for mode in modes if "sync" in MODES[mode].knobs]
    return runs | {f"{mode} no_sync": dataclasses.replace(runs[mode], sync=False) for mode in silent}


BREAKDOWN = Study(
    "breakdown", "profile", "Step breakdown",
    "What does a step spend its time on, and how much communication is exposed?",
    "where the step and the memory go: phases, exposed communication, timeline of a step", plans,
    group="explain", flags=MODES_FLAG, partial="memory",
)  # fmt: skip
STUDIES = (BREAKDOWN,)
