"""A rank: its number, what bounds its timed steps, its hooks."""

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
    """Stands in for a GPU: its clock, memory, mode and load. calls: what was called, and whether it was busy then."""

    def __init__(self):
        self.busy, self.calls, self.data_wait_s = True, [], [0.1]
        self.topology = SimpleNamespace(local_rank=1)
        self.found = {"moment": 7.0, "stop": {"wall_s": 2.0}, "step_time_s": [1.0], "phase_time_s": {"forward": [0.4]}}

    def __getattr__(self, name: str):
        def call(*arguments):
            self.busy &= name not in ("wait", "start")
            self.calls.append((" ".join((name, *arguments)), "busy" if self.busy else "idle"))
            self.busy |= name == "barrier"  # over NCCL it is a small reduction
            return self.found.get(name)

        return call


def test_the_timed_steps_are_bounded_by_an_idle_device(monkeypatch):
    """Energy and wall clock begin when the untimed steps are done, and end before anything is read."""
    device = Device()
    monkeypatch.setattr(measuring.load, "Load", lambda: device.load_begins() or device)
    monkeypatch.setattr(steady, "now", device.moment)
    observer = SimpleNamespace(timing_starts=lambda: None)
    timing = measuring.Timing(SimpleNamespace(clock=device, mode=device), device, {}, observer)
    timing.begin()
    assert device.calls == [
        ("wait", "idle"), ("mark timed", "idle"), ("barrier", "idle"), ("load_begins", "busy"), ("start", "idle"),
        ("moment", "idle"),
    ]  # fmt: skip
    device.busy, device.calls = True, []
    times = timing.end()
    order = ["wait", "moment", "stop", "mark end", "step_time_s", "phase_time_s"]
    assert device.calls == [(name, "idle") for name in order]
    assert timing.moments == {"first_timed_step": 7.0, "last_timed_step": 7.0}
    assert times == {
        "step_time_s": [1.0], "data_wait_s": [0.1], "phase_time_s": {"forward": [0.4]},
        "load": {"wall_s": 2.0, "local_rank": 1},
    }  # fmt: skip


@pytest.mark.parametrize(("variables", "left"), [
    ({"RANK": "1"}, [".rank1.error.json"]),
    ({"RANK": "3", "BENCH_RANK_IN": "HOROVOD_RANK", "HOROVOD_RANK": "1"}, [".rank1.error.json"]),
    ({"RANK": "0", "BENCH_RANK_IN": "HOROVOD_RANK"}, []),
])  # fmt: skip
def test_a_rank_gets_its_number_only_from_its_own_launcher(variables, left, tmp_path):
    """A worker whose config cannot be read reports that under its number; without one it takes nobody's place."""
    (tmp_path / "config.json").write_text(json.dumps({"colour": "red"}))
    usual = {name: value for name, value in os.environ.items() if not name.endswith("RANK")}
    argv = [sys.executable, "-m", "bench.worker", str(tmp_path)]
    assert subprocess.run(argv, cwd=ROOT, env=usual | variables, capture_output=True).returncode != 0
    assert sorted(path.name for path in tmp_path.glob(".rank*.error.json")) == left


def test_an_elastic_attempt_frees_what_the_one_before_it_has_frozen(monkeypatch, tmp_path):
    class Trainer:
        def __init__(self):
            self.hooks = [self]  # a cycle

    left = weakref.ref(Trainer())
    gc.freeze()
    monkeypatch.setattr(build, "join", lambda *_: 1 / 0)  # ends the attempt before it joins the others
    try:
        with pytest.raises(ZeroDivisionError):
            task.train(RunConfig(), tmp_path, SimpleNamespace(phase=lambda name: None), kept=object())
    finally:
        gc.freeze()  # as it was for the other tests
        gc.enable()
    assert left() is None


def harness(folder, **options) -> Harness:
    options = {"mode": "single", "data": "synthetic", "image_size": 16, **options}
    return Harness(resolve(RunConfig(**options), "cpu", 2), folder, pairs=1)


def test_the_compiler_gets_its_mode(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **how: asked.append(how))
    for mode in (None, "max-autotune"):
        harness(tmp_path, compile=True, compile_mode=mode)
    assert asked == [{"mode": None}, {"mode": "max-autotune"}]


def test_hooks_are_called_at_their_places(tmp_path):
    places, hook = [], Hook()
    for name in vars(Hook):
        if not name.startswith("__"):
            note = lambda *words, name=name: places.append(words[0] if name == "on_phase" else name)  # noqa: E731
            setattr(hook, name, note)
    built = harness(tmp_path, print_every=1)
    assert built.trainer.hooks == []  # in a plain run
    with built.trainer.hooked(hook):
        built.train(1)
    built.train(1)
    assert places == [
        "waiting for data", "before_step", "after_prepare", "forward", "backward", "synchronize", "after_synchronize",
        "optimizer step", "after_optimizer", "on_loss", "on_window", "after_step",
    ]  # fmt: skip
