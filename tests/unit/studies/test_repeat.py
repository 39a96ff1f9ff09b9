"""The make command that the page gives for a suite: it parses, and plans the very programs of the suite."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.__main__ import command_of
from bench.analysis.suite import suites_of
from bench.cli.actions.studies import flags_of
from bench.config.options import FIELDS, RunConfig, to_dict
from bench.record.view import Record
from bench.studies.programs import own_seed
from bench.studies.registry import STUDIES, study_of
from tests import records

HERE = "DEVICE=cpu THREADS=4"
SMALL = f"{HERE} WARMUP=2 STEPS=6"

# What a person could ask, with options that differ from the defaults. Every study is there.
ASKED = {
    "compare": f"compare GPUS=2 ROUNDS=2 BATCH=8 LR=0.02 BUCKET_CAP_MB=5.0 {SMALL}",
    "compare tuned": f"compare GPUS=2 ROUNDS=2 TUNED=1 OVERLAP=0 {SMALL}",
    "compare chosen": f"compare GPUS=2 ROUNDS=2 MODES=ddp,ddp:COMPRESSION=fp16:OVERLAP=1,horovod {SMALL}",
    "replay": f"compare GPUS=2 ROUNDS=2 REPLAY=ddp-barrier {SMALL}",
    "replay of loaders": f"compare GPUS=2 ROUNDS=2 REPLAY=dp-workers BATCH=4 {SMALL}",
    "control": f"compare GPUS=2 ROUNDS=2 REPLAY=nothing CHANNELS_LAST=1 {SMALL}",
    "scaling": f"compare scaling MAX_GPUS=4 ROUNDS=2 BATCH=8 IMAGE_SIZE=32 {SMALL}",
    "breakdown": f"profile GPUS=3 ROUNDS=2 MOMENTUM=0.5 {SMALL}",
    "sweep of ddp": f"sweep MODE=ddp GPUS=2 ROUNDS=2 TUNED=1 {SMALL}",
    "sweep of single": f"sweep MODE=single ROUNDS=2 BATCH=16 {SMALL}",
    "grid": f"sweep MODES=ddp,horovod GPUS=1,2 BATCH=8,16 COMPRESSION=none,fp16,bf16 LR=0.02 ROUNDS=2 {SMALL}",
    "grid of one mode": f"sweep MODE=zero1 GPUS=2 SCHEDULE=cosine;step:3,6 ROUNDS=2 {SMALL}",
    "accuracy": f"compare accuracy GPUS=2 SEEDS=3 SEED=40 EPOCHS=2 AUGMENT=0 SCHEDULE=constant {HERE}",
    "unsynced": f"mistake unsynced-init GPUS=3 SEEDS=2 WEIGHT_DECAY=0.1 {HERE}",
    "lab": f"mistake demo NAME=lr-not-scaled SEEDS=2 SEED=7 {SMALL}",
    "lab of a batch": f"mistake demo NAME=no-reshuffle GPUS=3 BATCH=10 CHANNELS_LAST=1 SEEDS=1 {SMALL}",
    "lab of a hang": f"mistake demo NAME=rank0-collective TIMEOUT=30.0 SEEDS=1 {SMALL}",
}


@pytest.fixture(autouse=True)
def every_mode_is_installed(monkeypatch):
    found = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: name))
    monkeypatch.setattr("bench.studies.programs.importlib", found)


def plans_of(line: str) -> dict[str, tuple]:
    """What a line for make plans: study -> (its programs without their labels, its rounds)."""
    command, words = command_of(line.split())
    args = command.parse(
        [re.sub(r"^\w+(?==)", lambda name: "--" + name[0].lower().replace("_", "-"), word) for word in words]
    )
    (study,) = command.run.args
    plans = study.plans(Console(quiet=True), study.read(args), flags_of(study, args))
    return {plan.study.name: (plan.programs, flags_of(study, args).rounds) for plan in plans}


def suite_of(study: str, programs: dict[str, RunConfig], rounds: int):
    """The suite that these programs would leave, as far as its records' options go."""
    made, any_record = [], records.record("single", num_devices=1)
    for number in range(rounds):
        labels = {"study": study, "suite": f"{study}-1", "round": number}
        files = {"out": "results/runs/suite", "baselines": False}
        for label, config in programs.items():
            config = own_seed(config, number) if STUDIES[study].seeded else config
            config = dataclasses.replace(config, **files).labelled(program=label, **labels)
            started = f"2026-01-02T03:04:05.{len(made):03d}"
            made.append(Record(any_record.data | {"config": to_dict(config), "started_at": started}))
    (suite,) = suites_of(made)
    return suite


@pytest.mark.parametrize("what", ASKED)
def test_the_command_that_repeats_a_suite_plans_its_programs(what):
    for study, (programs, rounds) in plans_of(ASKED[what]).items():
        suite = suite_of(study, programs, rounds)
        line = study_of(suite).repeat(suite)
        assert line.startswith("make ")
        again, rounds_again = plans_of(line.removeprefix("make "))[study]
        assert rounds_again == rounds and list(again) == list(programs), line
        for label, config in programs.items():
            differing = {name for name in FIELDS if getattr(config, name) != getattr(again[label], name)}
            assert differing <= {"out", "baselines"}, (label, line)


def test_every_study_is_asked():
    assert {name for line in ASKED.values() for name in plans_of(line)} == set(STUDIES)
