"""A rank: its number, and the order in which the timed steps are begun and ended, on a device that is made up: busy
until asked."""

import gc
import json
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.measure import steady
from bench.proof.gpu_check.bare_loop import Harness
from bench.training import build, measuring, task
from bench.training.hooks import Hook
from tests.runs import ROOT


class Device:
    """A GPU with steps in its queue, as clock, memory, mode and load see it. calls: what was asked of it, and whether
    it was busy then."""

    def __init__(self):
        self.busy, self.calls, self.data_wait_s = True, [], [0.1]
        self.topology = SimpleNamespace(local_rank=1)

    def note(self, name: str) -> None:
        self.calls.append((name, "busy" if self.busy else "idle"))

    def wait(self) -> None:
        self.busy = False

    def start(self) -> None:
        self.wait()
        self.note("first event")

    def barrier(self) -> None:
        self.note("barrier")
        self.busy = True  # over NCCL it is a small reduction

    def mark(self, name: str) -> None:
        self.note(f"mark {name}")

    def stop(self) -> dict:
        self.note("load ends")
        return {"wall_s": 2.0}

    def step_time_s(self) -> list:
        self.note("times are read")
        return [1.0]

    def phase_time_s(self) -> dict:
        return {"forward": [0.4]}


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(measuring.load, "Load", lambda: device.note("load begins") or device)
    monkeypatch.setattr(steady, "now", lambda: device.note("moment") or 7.0)
    return device


def timing_of(device: Device) -> measuring.Timing:
    observer = SimpleNamespace(timing_starts=lambda: None)
    return measuring.Timing(SimpleNamespace(clock=device, mode=device), device, {}, observer)


def test_energy_and_wall_clock_begin_when_the_untimed_steps_are_done(device):
    timing = timing_of(device)
    timing.begin()
    assert timing.load is device
    assert device.calls == [
        ("mark timed", "idle"), ("barrier", "idle"), ("load begins", "busy"), ("first event", "idle"),
        ("moment", "idle"),
    ]  # fmt: skip
    assert timing.moments == {"first_timed_step": 7.0}


def test_the_wall_clock_ends_with_the_last_step_and_before_anything_is_read(device):
    timing = timing_of(device)
    timing.load = device
    times = timing.end()
    assert device.calls == [("moment", "idle"), ("load ends", "idle"), ("mark end", "idle"), ("times are read", "idle")]
    assert timing.moments == {"last_timed_step": 7.0}
    assert times == {
        "step_time_s": [1.0], "data_wait_s": [0.1], "phase_time_s": {"forward": [0.4]},
        "load": {"wall_s": 2.0, "local_rank": 1},
    }  # fmt: skip


def errors_of(run_dir, **variables) -> list[str]:
    """The reports that a worker leaves whose launcher gave it these variables, and no config that can be read."""
    (run_dir / "config.json").write_text(json.dumps({"colour": "red"}))
    usual = {name: value for name, value in os.environ.items() if not name.endswith("RANK")}
    argv = [sys.executable, "-m", "bench.worker", str(run_dir)]
    assert subprocess.run(argv, cwd=ROOT, env=usual | variables, capture_output=True).returncode != 0
    return sorted(path.name for path in run_dir.glob(".rank*.error.json"))


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1"},
        {"RANK": "3", "BENCH_RANK_IN": "HOROVOD_RANK", "HOROVOD_RANK": "1", "OMPI_COMM_WORLD_RANK": "5"},
        {"RANK": "3", "BENCH_RANK_IN": "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK": "5", "OMPI_COMM_WORLD_RANK": "1"},
    ],
)
def test_a_rank_has_its_number_from_its_own_launcher_alone(variables, tmp_path):
    assert errors_of(tmp_path, **variables) == [".rank1.error.json"]


def test_a_process_without_a_rank_takes_the_place_of_none(tmp_path):
    assert errors_of(tmp_path, BENCH_RANK_IN="HOROVOD_RANK", RANK="0") == []


class Enough(Exception):
    """What ends an attempt here, before it joins the others."""


def test_an_elastic_attempt_frees_what_the_one_before_it_has_frozen(monkeypatch, tmp_path):
    def join(*_):
        raise Enough

    class Trainer:
        def __init__(self):
            self.hooks = [self]  # a cycle

    trainer = Trainer()
    left = weakref.ref(trainer)
    del trainer
    gc.freeze()
    monkeypatch.setattr(build, "join", join)
    try:
        with pytest.raises(Enough):
            task.train(RunConfig(), tmp_path, SimpleNamespace(phase=lambda name: None), kept=object())
    finally:
        gc.freeze()  # as it was for the other tests
        gc.enable()
    assert left() is None


def test_the_compiler_gets_its_mode(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **how: asked.append(how))
    for mode in (None, "max-autotune"):
        options = {"mode": "single", "data": "synthetic", "image_size": 16, "compile": True, "compile_mode": mode}
        Harness(resolve(RunConfig(**options), "cpu", 2), tmp_path, pairs=1)
    assert asked == [{"mode": None}, {"mode": "max-autotune"}]


class Noting(Hook):
    """Notes where it is called."""

    def __init__(self):
        self.places = []

    def __getattribute__(self, name: str):
        found = object.__getattribute__(self, name)
        if name not in vars(Hook):
            return found
        return lambda *arguments: self.places.append(arguments[0] if name == "on_phase" else name)


def test_hooks_are_called_at_their_places(tmp_path):
    options = {"mode": "single", "data": "synthetic", "image_size": 16}
    built = Harness(resolve(RunConfig(**options), "cpu", 2), tmp_path, pairs=1)
    assert built.trainer.hooks == []  # in a plain run
    with built.trainer.hooked(hook := Noting()):
        built.train(1)
    built.train(1)
    assert hook.places == [
        "waiting for data", "before_step", "after_prepare", "forward", "backward", "synchronize", "after_synchronize",
        "optimizer step", "after_optimizer", "on_loss", "after_step",
    ]  # fmt: skip
