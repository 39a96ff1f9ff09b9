"""A known mistake compared with the right version, over seeds. NAME=all: every mistake.

The measures, and the expected direction of the primary one, are fixed in the mistake's file (bench/mistakes).
"""

import dataclasses
import difflib
from collections.abc import Iterator
from pathlib import Path

from bench.config.modes import MODES
from bench.config.options import UNSET, RunConfig
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.mistakes import MISTAKES, Mistake
from bench.record.view import Record
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import available, last_accuracy, prepare, refuse, throughput

VARIANTS = ("right", "wrong")
ALWAYS = {"watch": True, "checkpoint": False, "baselines": False}
PRETRAINING = {"epochs": 3, "watch": False, "checkpoint": True}  # of the file that both versions load


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    """A suite for each requested mistake. Raises UserError for an unknown one, and for options that exclude it."""
    from bench.analysis.tables import print_named  # rich: not for a list of commands

    chosen = named(flags.name)
    refuse(asked, "watch", "init_sync", "item_sync", "replicas", "sync", "pretrained")
    if MODES[asked.mode].one_process or MODES[asked.mode].baseline:
        raise UserError(f"MODE={asked.mode} does not train in several processes: use MODE=ddp or horovod")
    if asked.num_devices < 2:
        raise UserError("this mistake needs several ranks: use GPUS=2 or more")
    available(console, asked, [asked.mode])
    for mistake in chosen:
        print_named(console, mistake.name, f"{mistake.title}. {mistake.lab.question}")
        config = configured(console, asked, mistake)
        primary = mistake.lab.measures_on(config.device)[0].of(workload_of(config))
        console.print(f"primary measure, fixed in advance: {primary.name}, expected {primary.moves}")
        found = programs(config, mistake)
        may_fail = tuple(label for label, each in found.items() if mistake.lab.hangs and each.label.variant == "wrong")
        yield Plan(LAB, found, says=says, may_fail=may_fail)


def programs(config: RunConfig, mistake: Mistake) -> dict[str, RunConfig]:
    configs = dict(zip(VARIANTS, (config, dataclasses.replace(config, **mistake.wrong)), strict=True))
    return {f"{v}: {mistake.name}": each.labelled(variant=v) for v, each in configs.items()}


def named(name: str | None) -> list[Mistake]:
    if name == "all":
        return list(MISTAKES.values())
    if name in MISTAKES:
        return [MISTAKES[name]]
    near = difflib.get_close_matches(name or "", MISTAKES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(MISTAKES)}, or all"
    raise UserError(f"NAME={name or ''}: {hint}")


def configured(console, asked: RunConfig, mistake: Mistake) -> RunConfig:
    """The right version of a mistake demo, resolved: the user's options override the demo's. On a GPU with
    TORCH_DEFAULTS=1, so that rounding is not mistaken for the effect."""
    needed = {k: v for k, v in mistake.lab.workload.items() if k != "checkpoint"}
    own = {k: v for k, v in needed.items() if getattr(asked, k) == LAB.defaults.get(k, UNSET[k])}
    asked = dataclasses.replace(asked, plain=True, **own)
    config = prepare(console, asked, trains=asked.epochs > 0)
    writes = {"checkpoint": mistake.lab.workload.get("checkpoint", False)}
    config = dataclasses.replace(config, **ALWAYS | writes)
    if not mistake.lab.pretrains:
        return config
    from bench.launch.launcher import launch  # not for a list of commands
    from bench.launch.progress_bar import LiveProgress

    training = dataclasses.replace(config, **PRETRAINING, seed=config.seed + 1000)
    with LiveProgress(training, console, "weights to load") as watch:
        record = launch(training, watch)
    console.print(f"weights to load: {record.parent}")
    return dataclasses.replace(config, pretrained=str(Path(record.parent) / "latest.pt"))


def says(record: Record) -> str:
    return last_accuracy(record) if record.accuracy else throughput(record)


LAB = Study(
    "lab", "mistake demo", "The known mistakes",
    "What does each known mistake do, what are its symptoms, and what detects it?",
    "a known mistake compared with the right version, over seeds: what it does and how it is found", plans,
    group="explain", example="NAME=no-reshuffle [SEEDS=3 QUICK=1]",
    # Seconds per run on two CPU cores, mostly for the start.
    defaults={"model": "resnet18", "data": "digits", "image_size": 8, "num_devices": 2, "lr": 0.02,
              "per_device_batch": 120, "epochs": 2},
    sets=("watch", "pretrained"), rounds=3, seeded=True, named_by="NAME", card=True,
    questions={mistake.name: mistake.lab.question for mistake in MISTAKES.values()},
)  # fmt: skip
STUDIES = (LAB,)
