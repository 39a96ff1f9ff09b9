"""All modes on one workload: which is fastest here, by how much, and how sure is that?"""

import dataclasses
from collections.abc import Iterator

from bench.config.command_line import ON_OFF
from bench.config.options import RunConfig
from bench.studies.base import Flags, Plan, Study
from bench.studies.prepare import available, prepare, refuse
from bench.studies.programs import bounds_of, even_threads, in_mode
from bench.studies.replay import study as replay


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    """One suite; with REPLAY=<name> that of the replay."""
    if flags.replay is not None:
        yield from replay.plans(console, asked, flags)
        return
    refuse(asked, "mode")
    config = prepare(console, dataclasses.replace(asked, mode="ddp"))
    yield Plan(COMPARE, programs(config, available(console, config)))


def programs(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every mode on the same global batches, single first; on a CPU the upper bound too. config: resolved."""
    config = even_threads(config)
    return {mode: in_mode(config, mode) for mode in [*modes, *bounds_of(config)]}


COMPARE = Study(
    "compare",
    "compare",
    "Comparison",
    "Which mode is fastest here, by how much, and how sure is that?",
    "all modes on one workload in interleaved rounds: certificate, verdict, pictures, page",
    plans,
    example="GPUS=2 [ROUNDS=8|auto QUICK=1 STRICT=1 REPLAY=dp-workers|…]",
    flags={
        "--strict": ON_OFF | {"metavar": "STRICT", "help": "refuse an unfair comparison"},
        "--replay": {"metavar": "REPLAY", "help": f"an unfairness on purpose: {', '.join(replay.REPLAYS)}"},
    },
    rounds=8,
    enough=8,
    auto=True,
    partial=True,
)
STUDIES = (COMPARE,)
