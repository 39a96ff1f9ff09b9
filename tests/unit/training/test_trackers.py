"""bench/training/trackers.py: what a real TensorBoard and a real offline wandb leave, and that nothing else is left.

wandb is used in a process of its own, as in a rank: it keeps state for the rest of a process, and starts a service. To
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
from pathlib import Path

import pytest

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.process.guard import alive
from bench.training import trackers
from bench.training.trackers import KINDS, open_tracker
from tests.runs import ROOT

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
        (folder / "cwd").mkdir(exist_ok=True)
        result = subprocess.run(
            [sys.executable, "-c", script], cwd=folder / "cwd", env=kept, capture_output=True, text=True, timeout=180
        )
        self.code, self.output = result.returncode, result.stdout + result.stderr
        self.folder, self.run_dir, self.services = folder, folder / "cwd" / "run-1", []
        with contextlib.suppress(FileNotFoundError):
            self.services = [int(pid) for pid in (folder / "cwd" / "services").read_text().split()]
        self.temporary = sorted(path.name for path in Path(temporary).iterdir())
        shutil.rmtree(temporary)

    def service_ends(self, limit_s: float) -> bool:
        """Whether there was a service, and every one is gone within a limit."""
        deadline = time.monotonic() + limit_s
        while any(map(alive, self.services)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(self.services) and not any(map(alive, self.services))

    def offline_run(self) -> bytes:
        """The file of wandb's one offline run, which `wandb sync` would send."""
        (path,) = self.run_dir.glob("wandb/offline-run-*/run-*.wandb")
        return path.read_bytes()


# TensorBoard


def events(run_dir: Path):
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run_dir / "tensorboard")).Reload()


def scalars(run_dir: Path, name: str) -> list[tuple]:
    """The values of one name: (step, value)."""
    found = events(run_dir)
    return [(e.step, e.value) for e in found.Scalars(name)] if name in found.Tags()["scalars"] else []


def config_in(run_dir: Path) -> dict:
    """The options that were noted with them."""
    (text,) = events(run_dir).Tensors("config/text_summary")
    return json.loads(text.tensor_proto.string_val[0].decode().strip("`\n"))


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    for step in range(3):
        tracker.log(step, {"train/loss": 2.0**-step, "train/lr": 0.5})
    tracker.log(3, {"val/top1": 0.75})
    tracker.close()
    assert scalars(tmp_path, "train/loss") == [(0, 1.0), (1, 0.5), (2, 0.25)]
    assert scalars(tmp_path, "train/lr") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert scalars(tmp_path, "val/top1") == [(3, 0.75)]
    assert config_in(tmp_path) == CONFIG
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    assert not any(socket.gethostname() in path.name for path in tmp_path.rglob("*"))  # nothing names the machine


def test_tensorboard_has_the_values_on_disk_soon_for_a_run_that_is_killed(tmp_path):
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    tracker.log(0, {"loss": 1.0})
    deadline = time.monotonic() + 20
    while not scalars(tmp_path, "loss") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert scalars(tmp_path, "loss") == [(0, 1.0)]
    tracker.close()


def test_closing_twice_and_logging_after_it_do_no_harm(tmp_path):
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    tracker.close()
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert scalars(tmp_path, "loss") == []


def test_what_a_tracker_cannot_write_is_one_line_and_no_exception(tmp_path, capfd):
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    tracker.log(0, {"loss": "not a number"})
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.fixture
def disk(monkeypatch):
    """An event: while it is not set, TensorBoard's files cannot be written to."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    free, write = threading.Event(), RecordWriter.write

    def wait_and_write(self, data):
        if not free.wait(15):
            free.set()  # once is enough
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", wait_and_write)
    free.set()
    yield free
    free.set()


def test_a_step_does_not_wait_for_the_disk(tmp_path, disk):
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    disk.clear()
    started = time.monotonic()
    for step in range(500):
        tracker.log(step, {"loss": float(step)})
    assert time.monotonic() - started < 30
    disk.set()
    tracker.close()
    assert scalars(tmp_path, "loss") == [(step, float(step)) for step in range(500)]


def test_close_waits_for_the_disk_no_longer_than_its_limit(tmp_path, disk, monkeypatch, capfd):
    monkeypatch.setattr(trackers, "CLOSE_S", 0.2)
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    disk.clear()
    started = time.monotonic()
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert time.monotonic() - started < 30
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("tracker: ") and "0.2 s" in line


# wandb


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """One offline run, closed, whose process then leaves as a rank does; its server would be a socket of ours."""
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
        key = "0" * 40  # a key alone does not make a run go online
        ended = Ended(tmp_path_factory.mktemp("tracked"), script, WANDB_BASE_URL=url, WANDB_API_KEY=key)
        server.settimeout(0)
        ended.called = True
        try:
            server.accept()
        except BlockingIOError:
            ended.called = False
    return ended


def test_wandb_has_what_tensorboard_has(tracked):
    assert tracked.code == 0, tracked.output
    assert scalars(tracked.run_dir, "train/loss") == [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125), (4, 0.0625)]
    assert scalars(tracked.run_dir, "val/top1") == [(4, 0.75)]
    assert config_in(tracked.run_dir) == CONFIG
    held = tracked.offline_run()
    logged = ("train/loss", "0.5", "0.25", "0.125", "0.0625", "val/top1", "0.75")
    assert all(text.encode() in held for text in (*logged, *CONFIG))


def test_wandb_writes_below_the_run_folder_and_nowhere_else(tracked):
    assert {path.name for path in (tracked.folder / "cwd").iterdir()} == {"run-1", "services", "left"}
    assert {path.name for path in tracked.run_dir.iterdir()} == {"tensorboard", "wandb"}
    assert not (tracked.run_dir / "wandb" / "scratch").exists()
    assert list((tracked.folder / "home").iterdir()) == []
    assert tracked.temporary == []


def test_wandb_prints_nothing_and_calls_nobody(tracked):
    assert tracked.output == ""
    assert not tracked.called


def test_no_process_of_wandbs_is_left_after_close(tracked):
    assert tracked.services
    assert json.loads((tracked.folder / "cwd" / "left").read_text()) == []


def test_a_killed_run_leaves_no_service_and_keeps_its_values(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN + (
        "for step in range(4): run.log(step, {'loss': 1.0})\n"
        "(path,) = run_dir.glob('tensorboard/*')\n"
        "deadline = time.monotonic() + 10\n"
        "while b'loss' not in path.read_bytes() and time.monotonic() < deadline: time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == -signal.SIGKILL, ended.output
    assert ended.service_ends(10)
    assert scalars(ended.run_dir, "loss")[:1] == [(0, 1.0)] and ended.offline_run()


def test_a_service_that_hangs_delays_nothing_but_close_and_that_has_a_limit(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN + (
        "trackers.CLOSE_S, trackers.END_S = 0.5, 1.0\n"
        "services[0].suspend()\n"
        "started = time.monotonic()\n"
        "for step in range(5000): run.log(step, {'loss': 1.0})\n"
        "logged = time.monotonic()\n"
        "run.close()\n"
        "print(logged - started, time.monotonic() - logged)\n"
        "sys.stdout.flush()\n"
        "os._exit(7)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == 7, ended.output
    logged, closed = map(float, re.search(r"^([\d.]+) ([\d.]+)$", ended.output, re.M).groups())
    assert logged < 30 and closed < 0.5 + 2 * 1.0 + 30  # a busy machine is slow; who waits for the service waits on
    assert "tracker: not closed after 0.5 s" in ended.output
    assert ended.service_ends(0)
    assert scalars(ended.run_dir, "loss")[-1] == (4999, 1.0)


def test_a_service_that_is_killed_does_not_end_the_run(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN + (
        "services[0].kill()\n"
        "services[0].wait(10)\n"
        "for step in range(100): run.log(step, {'loss': 1.0})\n"
        "run.close()\n"
        "os._exit(7)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == 7, ended.output
    assert re.fullmatch(r"tracker: .*; no more values are written\n", ended.output)
    assert len(scalars(ended.run_dir, "loss")) == 100  # TensorBoard's files need no service


def test_online_without_a_key_is_one_clear_line(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN.replace("run = ", "try: run = ").replace(
        "services = ", "except trackers.UserError as error: print(error)\nservices = "
    )
    ended = Ended(tmp_path, script, WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9")
    assert (ended.code, ended.services) == (0, []), ended.output
    (line,) = ended.output.splitlines()
    assert "WANDB_MODE=online" in line and "leave WANDB_MODE out" in line


# What cannot be tracked, and who does not


BLOCKED = """
import sys
from pathlib import Path
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from bench.errors import UserError
from bench.training.trackers import open_tracker
try: open_tracker({kind!r}, Path("run-1"), {{}}, 0)
except UserError as error: print(error)
"""
NEEDS = [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("wandb", "tensorboard")]


@pytest.mark.parametrize(("kind", "package"), NEEDS)
def test_a_missing_package_is_one_clear_line(kind, package, tmp_path):
    ended = Ended(tmp_path, BLOCKED.format(kind=kind, package=package))
    (line,) = ended.output.splitlines()
    assert line.startswith(f"TRACK={kind} needs {package}") and "[track]" in line


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_folder_of_the_packages_name_is_not_the_package(package, tmp_path):
    """Python takes ./wandb for an empty package where the real one is absent."""
    (tmp_path / "cwd" / package).mkdir(parents=True)
    script = BLOCKED.format(kind=package, package=package).replace("raise ModuleNotFoundError", "return namespace() #")
    script = (
        "import importlib.machinery\n"
        "def namespace():\n"
        f"    return importlib.machinery.PathFinder.find_spec({package!r}, ['.'])\n" + script
    )
    ended = Ended(tmp_path, script)
    (line,) = ended.output.splitlines()
    assert line.startswith(f"TRACK={package} needs {package}") and "[track]" in line


def test_an_unknown_tracker_is_one_clear_line():
    """And each known one has its class."""
    for kind in KINDS:
        assert RunConfig(track=kind).track == kind
    with pytest.raises(UserError, match=f"TRACK=mlflow.*{', '.join(KINDS)}$"):
        RunConfig(track="mlflow")


@pytest.mark.parametrize(("kind", "rank"), [("none", 0), *((kind, 1) for kind in KINDS)])
def test_who_does_not_track_writes_nothing(kind, rank, tmp_path):
    tracker = open_tracker(kind, tmp_path, CONFIG, rank)
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []
