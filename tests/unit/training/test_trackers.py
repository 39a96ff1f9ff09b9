"""bench/training/trackers.py: what a real TensorBoard and a real offline wandb leave, and that nothing else is left.

wandb is used in a separate process, as in a rank: it keeps state for the rest of a process, and starts a service. To
finish a run takes it ten seconds: what can be seen of one run is seen of one run.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.machinery import PathFinder
from pathlib import Path
from unittest import mock

import pytest

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.launch.launcher import resolve_here
from bench.process.guard import alive
from bench.process.heartbeat import Window
from bench.training import trackers
from bench.training.trackers import KINDS, Curves, open_tracker
from tests.runs import ROOT, refuses, wait_for

pytestmark = pytest.mark.slow

CONFIG = {"mode": "ddp", "num_devices": 4, "lr": 0.05, "bucket_cap_mb": None}

# What each script begins with: `run` is a tracked run, `services` the processes that it started.
OPEN = f"""
import json, os, signal, sys, time
from pathlib import Path
import psutil
from bench.training import trackers
run_dir = Path("run-1")
run_dir.mkdir()
run = trackers.open_tracker("wandb", run_dir, {CONFIG!r}, 0)
services = psutil.Process().children(recursive=True)
Path("services").write_text(" ".join(str(p.pid) for p in services))
"""


class Ended:
    """A script's end: its folder, its output, and the processes that its tracker started."""

    def __init__(self, folder: Path, script: str, **environment: str):
        temporary = tempfile.mkdtemp(prefix="t", dir="/tmp")  # short: the path of a socket has 108 characters
        (folder / "home").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "XDG"))}
        kept |= {"HOME": str(folder / "home"), "TMPDIR": temporary, "PYTHONPATH": str(ROOT)} | environment
        (folder / "cwd").mkdir()
        result = subprocess.run(
            [sys.executable, "-c", script], cwd=folder / "cwd", env=kept, capture_output=True, text=True, timeout=180
        )
        self.code, self.output = result.returncode, result.stdout + result.stderr
        self.run_dir, self.services = folder / "cwd" / "run-1", []
        with contextlib.suppress(FileNotFoundError):
            self.services = [int(pid) for pid in (folder / "cwd" / "services").read_text().split()]
        self.temporary = sorted(path.name for path in Path(temporary).iterdir())
        shutil.rmtree(temporary)

    def offline_run(self) -> bytes:
        """The file of wandb's one offline run, which `wandb sync` would send."""
        (path,) = self.run_dir.glob("wandb/offline-run-*/run-*.wandb")
        return path.read_bytes()


def events(run_dir: Path):
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run_dir / "tensorboard")).Reload()


def scalars(run_dir: Path) -> dict[str, list[tuple]]:
    """The values by name: (step, value)."""
    found = events(run_dir)
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


def config_in(run_dir: Path) -> dict:
    """The options that were noted with them."""
    (text,) = events(run_dir).Tensors("config/text_summary")
    return json.loads(text.tensor_proto.string_val[0].decode().strip("`\n"))


# TensorBoard


def test_tensorboard_reads_back_what_was_logged(tmp_path, capfd):
    """Soon, for a run that is killed. What cannot be written is one line; after closing, nothing more is."""
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    for step in range(3):
        tracker.log(step, {"train/loss": 2.0**-step, "train/lr": 0.5})
    wait_for(lambda: "train/loss" in scalars(tmp_path), "the values are on the disk", 20)
    tracker.log(3, {"val/top1": 0.75})
    tracker.close()
    tracker.log(4, {"val/top1": 1.0})
    tracker.close()
    losses, rates = [(0, 1.0), (1, 0.5), (2, 0.25)], [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert scalars(tmp_path) == {"train/loss": losses, "train/lr": rates, "val/top1": [(3, 0.75)]}
    assert config_in(tmp_path) == CONFIG
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    assert not any(socket.gethostname() in path.name for path in tmp_path.rglob("*"))  # nothing names the machine
    tracker = open_tracker("tensorboard", tmp_path / "other", CONFIG, 0)
    tracker.log(0, {"loss": "not a number"})
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_what_a_tracker_gets_of_a_training(tmp_path):
    """By the field's names, at the step; of a record its own names, whatever is in its summary."""
    config = resolve(RunConfig(mode="ddp", num_devices=2, model="gpt", per_device_batch=8), "cpu", 2)
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    curves = Curves(tracker, config, 3e12, 192.0)  # FLOPs of an example, TFLOP/s of a device
    curves.on_loss(3, 2.5)
    curves.on_window(4, Window(1, 4096.0, 0.25, 0.05, 1.5))  # 64 tokens an example
    row = {"epoch": 1, "steps": 9, "lr": 0.25, "train_loss": 2.0, "loss": None, "bits_per_byte": 3.0, "images": 7}
    curves.epoch_ended(9, row, [1.0, 2.0])
    peaks = [{"device": "cpu", "pss": 1.25}, {"device": "cpu", "pss": 2.25}]
    summary = {"throughput_per_s": 64.0, "mfu": 0.5, "step_time_s": {"median": 0.125, "n": 3}, "disturbed_above": {}}
    curves.run_ended(10, summary | {"peak_memory_gib": peaks})
    tracker.close()
    peaks = {"memory/device0_peak_gib": (10, 1.25), "memory/device1_peak_gib": (10, 2.25)}
    wanted = peaks | {
        "train/loss": (3, 2.5), "train/lr": (9, 0.25), "train/epoch": (9, 1.0), "train/loss_epoch": (9, 2.0),
        "perf/examples_per_s": (4, 64.0), "perf/tokens_per_s": (4, 4096.0), "perf/step_ms": (4, 250.0),
        "perf/tflops_per_device": (4, 96.0), "perf/mfu": (4, 0.5), "perf/data_wait_ms": (4, 62.5),
        "memory/device0_gib": (9, 1.0), "memory/device1_gib": (9, 2.0),
        "val/bits_per_byte": (9, 3.0), "summary/throughput_per_s": (10, 64.0), "summary/mfu": (10, 0.5),
        "summary/step_time_s": (10, 0.125),
    }  # fmt: skip
    assert {name: values[-1] for name, values in scalars(tmp_path).items()} == wanted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread dies
def test_a_disk_that_fills_up_is_one_note(tmp_path, monkeypatch):
    from tensorboard.summary.writer.record_writer import RecordWriter

    notes, write = [], mock.Mock(side_effect=OSError(28, "No space left on device"))
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0, notes.append)
    monkeypatch.setattr(RecordWriter, "write", write)
    for step in range(100):
        tracker.log(step, {"loss": 1.0})
        time.sleep(0.002)
    tracker.close()
    (note,) = notes
    assert "No space left" in note


def test_a_step_does_not_wait_for_the_disk_and_close_no_longer_than_its_limit(tmp_path, monkeypatch, capfd):
    from tensorboard.summary.writer.record_writer import RecordWriter

    free, write = threading.Event(), RecordWriter.write

    def wait_and_write(self, data):
        if not free.wait(15):
            free.set()  # once is enough
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", wait_and_write)
    monkeypatch.setattr(trackers, "CLOSE_S", 0.2)
    free.set()
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    free.clear()
    started = time.monotonic()
    for step in range(500):
        tracker.log(step, {"loss": float(step)})
    tracker.close()
    assert time.monotonic() - started < 10
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("tracker: ") and "0.2 s" in line
    free.set()
    written = {"loss": [(step, float(step)) for step in range(500)]}
    wait_for(lambda: scalars(tmp_path) == written, "all are written", 20)


# wandb


def test_a_run_in_wandb(tmp_path, copied_python):
    """Closed, and its process leaves as a rank does: it has what TensorBoard has, writes below the run's folder alone,
    prints nothing, calls nobody, though there is a key, and leaves no process."""
    pytest.importorskip("wandb")
    script = OPEN + (
        "for step in range(5): run.log(step, {'train/loss': 2.0 ** -step})\n"
        "run.log(4, {'val/top1': 0.75})\n"
        "run.close()\n"
        "run.log(5, {'train/loss': 1.0})\n"
        "run.close()\n"
        "left = [p.pid for p in services if p.is_running()]\n"
        "left += [p.pid for p in psutil.Process().children(recursive=True)]\n"
        "Path('left').write_text(json.dumps(left))\n"
        "os._exit(0)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        ended = Ended(tmp_path, script, WANDB_BASE_URL=url, WANDB_API_KEY="0" * 40)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (ended.code, ended.output) == (0, "")
    losses = [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125), (4, 0.0625)]
    assert scalars(ended.run_dir) == {"train/loss": losses, "val/top1": [(4, 0.75)]}
    assert config_in(ended.run_dir) == CONFIG
    logged = ("train/loss", "0.5", "0.25", "0.125", "0.0625", "val/top1", "0.75", *CONFIG)
    assert all(text.encode() in ended.offline_run() for text in logged)
    assert {path.name for path in (tmp_path / "cwd").iterdir()} == {"run-1", "services", "left"}
    assert {path.name for path in ended.run_dir.iterdir()} == {"tensorboard", "wandb"}
    assert not (ended.run_dir / "wandb" / "scratch").exists()
    assert list((tmp_path / "home").iterdir()) == [] == ended.temporary
    assert ended.services and json.loads((tmp_path / "cwd" / "left").read_text()) == []


def test_a_killed_run_leaves_no_service_and_keeps_its_values(tmp_path, copied_python):
    pytest.importorskip("wandb")
    script = OPEN + (
        "for step in range(4): run.log(step, {'loss': 1.0})\n"
        "(path,) = run_dir.glob('tensorboard/*')\n"
        "deadline = time.monotonic() + 10\n"
        "while b'loss' not in path.read_bytes() and time.monotonic() < deadline: time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == -signal.SIGKILL and ended.services, ended.output
    wait_for(lambda: not any(map(alive, ended.services)), "the service ends", 20)
    assert scalars(ended.run_dir)["loss"][:1] == [(0, 1.0)] and ended.offline_run()


@pytest.mark.parametrize("what", ["suspend", "kill"])
def test_a_service_that_hangs_or_is_killed_does_not_end_the_run(tmp_path, what, copied_python):
    """It delays nothing but close, which has a limit and ends it. TensorBoard's files need no service."""
    pytest.importorskip("wandb")
    script = OPEN + (
        "trackers.CLOSE_S, trackers.END_S = 0.5, 1.0\n"
        f"services[0].{what}()\n"
        "started = time.monotonic()\n"
        "for step in range(1000): run.log(step, {'loss': 1.0})\n"
        "run.close()\n"
        "print('seconds', time.monotonic() - started)\n"
        "while any(map(trackers.tree.is_running, services)): time.sleep(0.1)\n"
        "sys.stdout.flush()\n"
        "os._exit(7)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == 7, ended.output
    assert float(re.search(r"(?m)^seconds (\S+)$", ended.output)[1]) < 60  # on a busy machine
    assert "tracker: " in ended.output
    assert scalars(ended.run_dir)["loss"][-1] == (999, 1.0)


def test_online_without_a_key_is_refused(tmp_path, copied_python):
    pytest.importorskip("wandb")
    script = OPEN.replace("run = ", "try: run = ").replace(
        "services = ", "except trackers.UserError as error: print(error)\nservices = "
    )
    ended = Ended(tmp_path, script, WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9")
    assert (ended.code, ended.services) == (0, []), ended.output
    (line,) = ended.output.splitlines()
    assert "WANDB_MODE=online" in line


# What cannot be tracked, and who does not


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(("kind", "package"), [("tensorboard",) * 2, ("wandb",) * 2, ("wandb", "tensorboard")])
def test_a_missing_package_is_named(kind, package, folder, tmp_path, monkeypatch):
    """Before anything is started, and by a rank on another machine; also where a folder has its name: Python takes it
    for an empty package where the real one is absent."""
    if folder:
        (tmp_path / package).mkdir()
    find = PathFinder.find_spec

    def find_elsewhere(name, path=None, target=None):
        return find(name, [str(tmp_path)] if name == package else path, target)

    monkeypatch.setattr(PathFinder, "find_spec", find_elsewhere)
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    with mock.patch.dict(os.environ):
        for start in (lambda: resolve_here(RunConfig(track=kind)), lambda: open_tracker(kind, tmp_path, {}, 0)):
            with refuses(f"TRACK={kind}") as caught:
                start()
            assert package in str(caught.value).partition("pip install")[2]


def test_an_unknown_tracker_is_refused():
    with refuses("TRACK=mlflow", ", ".join(KINDS)):
        RunConfig(track="mlflow")


@pytest.mark.parametrize(("kind", "rank"), [("none", 0), *((kind, 1) for kind in KINDS)])
def test_who_does_not_track_writes_nothing(kind, rank, tmp_path):
    tracker = open_tracker(kind, tmp_path, CONFIG, rank)
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []
