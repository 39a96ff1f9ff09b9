"""``make lab NAME=<mistake>``: a known mistake beside the right version, over seeds; NAME=all: the whole museum.

Each lab is a suite of two programs, equal but for the mistake, in interleaved rounds, each with a seed of its own. What
is compared and what is expected is in bench/studies/lab/result.py; this file has the workloads and runs them.
"""

import dataclasses
import difflib
from pathlib import Path

from bench.analysis import tables
from bench.commands import study as experiments
from bench.config.modes import MODES
from bench.config.options import LAB, UNSET, RunConfig
from bench.errors import UserError
from bench.launch.launcher import launch
from bench.launch.progress_bar import LiveProgress
from bench.mistakes import MISTAKES, wrong
from bench.studies import programs as suites
from bench.studies import rounds as running
from bench.studies.lab.result import LABS

# What a lab needs beside config.LAB for its mistake to be made and to be seen, where the user says nothing else.
WORKLOADS = {
    "unsynced-init": {"per_device_batch": 48},
    "no-reshuffle": {"per_device_batch": 48},
    "rank0-collective": {"epochs": 1, "timeout": 20.0},
    "lr-not-scaled": {"per_device_batch": 48, "lr": 0.0005, "lr_batch": 16},
    "same-augmentation": {"augment": True, "per_device_batch": 48},
    "strict-false": {"epochs": 1},
    "local-norm": {"norm": "sync", "per_device_batch": 7, "epochs": 1, "lr": 0.005},
    "host-sync": {"epochs": 0, "timed_steps": 20, "per_device_batch": 32},
    "lost-remainder": {"per_device_batch": 48},
}
ALWAYS = {"watch": True, "checkpoint": False, "baselines": False}
CHECKPOINTS = ("many-writers",)  # the labs that are about them
MAY_FAIL = {"rank0-collective": ("wrong: rank0-collective",)}  # a run that hangs is what this lab is for
PRETRAINING = {"epochs": 3, "watch": False, "checkpoint": True}  # of the file that strict-false loads


def run(asked: RunConfig, name: str | None, seeds: int | None, quick: bool) -> int:
    """One lab, or all of them. Raises UserError for a name that is not in the museum, and options that exclude it."""
    names = names_of(name)
    experiments.refuse(asked, "watch", "init_sync", "item_sync", "replicas", "sync", "pretrained")
    console = tables.terminal()
    if MODES[asked.mode].one_process or MODES[asked.mode].baseline:
        raise UserError(f"MODE={asked.mode} is no mode of several processes that train: use MODE=ddp or horovod")
    if asked.num_devices < 2:
        raise UserError("GPUS=1 has no other rank to get wrong: use GPUS=2 or more")
    if asked.mode not in experiments.available(console):
        raise UserError(f"MODE={asked.mode} cannot run here: run `bench doctor`")
    folders = [run_lab(console, asked, each, seeds, quick) for each in names]
    return experiments.finish(console, folders)


def names_of(name: str | None) -> list[str]:
    """The labs that NAME asks for.

    >>> names_of("host-sync"), names_of("all") == list(MISTAKES)
    (['host-sync'], True)
    """
    if name == "all":
        return list(MISTAKES)
    if name in MISTAKES:
        return [name]
    near = difflib.get_close_matches(name or "", MISTAKES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(MISTAKES)}, or all"
    raise UserError(f"NAME={name or ''}: {hint}")


def run_lab(console, asked: RunConfig, name: str, seeds: int | None, quick: bool) -> Path:
    """One lab's suite; its folder."""
    lab = LABS[name]
    console.print(f"[bold]{name}[/]: {MISTAKES[name].title}. {lab.question}")
    config = configured(console, asked, name)
    decides = lab.figures_on(config.device)[0]
    console.print(f"decides, said now: {decides.name}, expected {decides.moves}", highlight=False, markup=False)
    roles = {f"right: {name}": config, f"wrong: {name}": dataclasses.replace(config, **wrong(name))}
    each = {"in_round": suites.own_seed, "say": said, "may_fail": MAY_FAIL.get(name, ())}
    return experiments.run(console, "lab", roles, seeds, quick, config.out, **each)


def configured(console, asked: RunConfig, name: str) -> RunConfig:
    """The right version of a lab, resolved: what the user asked for over what the lab needs."""
    own = {k: v for k, v in WORKLOADS.get(name, {}).items() if getattr(asked, k) == LAB.get(k, UNSET[k])}
    asked = dataclasses.replace(asked, **own)
    config = experiments.prepare(console, asked, trains=asked.epochs > 0)
    config = dataclasses.replace(config, **ALWAYS | {"checkpoint": name in CHECKPOINTS})
    return with_weights(console, config) if name == "strict-false" else config


def with_weights(console, config: RunConfig) -> RunConfig:
    """The config with a PRETRAINED file, which a short training makes first."""
    training = dataclasses.replace(config, **PRETRAINING, seed=config.seed + 1000)
    with LiveProgress(training, console, "weights to load") as watch:
        record = launch(training, watch)
    console.print(f"weights to load: {record.parent}", highlight=False)
    return dataclasses.replace(config, pretrained=str(record.parent / "latest.pt"))


def said(record: dict) -> str:
    """What is said of a run while its lab goes on."""
    return experiments.last_top1(record) if "accuracy" in record else running.images_per_s(record)
