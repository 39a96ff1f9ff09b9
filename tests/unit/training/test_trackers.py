"""bench/training/trackers.py: what a real TensorBoard and a real offline wandb wrote is read back, and nothing is left behind.

wandb is used in a process of its own, as in a rank: it keeps state for the rest of a process, and starts a service.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.process.guard import alive
from bench.training.trackers import SINKS, open_tracker
from tests.runs import ROOT

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
services = psutil.Process().children()
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
            [sys.executable, "-c", script], cwd=folder / "cwd", env=kept, capture_output=True, text=True, timeout=90
        )
        self.code, self.output = result.returncode, result.stdout + result.stderr
        self.folder, self.run_dir = folder, folder / "cwd" / "run-1"
        with contextlib.suppress(FileNotFoundError):
            self.services = [int(pid) for pid in (folder / "cwd" / "services").read_text().split()]
        self.temporary = sorted(path.name for path in Path(temporary).iterdir())
        shutil.rmtree(temporary)

    def service_ends(self, limit_s: float) -> bool:
        """Whether every service is gone within a limit."""
        deadline = time.monotonic() + limit_s
        while any(map(alive, self.services)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not any(map(alive, self.services))

    def records(self) -> list:
        """What the offline run's file holds: a header of 7 bytes, then records of LevelDB's log format (each chunk has
        a checksum of 4 bytes, a length of 2 and a kind: whole, first, middle, last), each a protobuf message."""
        from wandb.proto import wandb_internal_pb2

        (path,) = self.run_dir.glob("wandb/offline-run-*/run-*.wandb")
        data, position, message, found = path.read_bytes(), 7, b"", []
        while position + 7 <= len(data):
            if 32768 - position % 32768 < 7:  # no chunk header fits into what is left of the block
                position += 32768 - position % 32768
                continue
            length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
            message += data[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):
                found.append(wandb_internal_pb2.Record.FromString(message))
                message = b""
        return found

    def history(self) -> list[dict]:
        """The logged values, a dict a step; wandb's own names begin with an underscore."""
        rows = [r.history.item for r in self.records() if r.WhichOneof("record_type") == "history"]
        return [{(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in row} for row in rows]


def values(history: list[dict], name: str) -> list[tuple]:
    return [(row["_step"], row[name]) for row in history if name in row]


# TensorBoard


def scalars(run_dir: Path, name: str) -> list[tuple]:
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return [(e.step, e.value) for e in found.Scalars(name)] if name in found.Tags()["scalars"] else []


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    tracker = open_tracker("tensorboard", tmp_path, CONFIG, 0)
    for step in range(3):
        tracker.log(step, {"train/loss": 2.0**-step, "train/lr": 0.5})
    tracker.log(3, {"val/top1": 0.75})
    tracker.close()
    assert scalars(tmp_path, "train/loss") == [(0, 1.0), (1, 0.5), (2, 0.25)]
    assert scalars(tmp_path, "train/lr") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert scalars(tmp_path, "val/top1") == [(3, 0.75)]
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]


def test_tensorboard_holds_the_config(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    open_tracker("tensorboard", tmp_path, CONFIG, 0).close()
    text = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tensors("config/text_summary")[0]
    assert json.loads(text.tensor_proto.string_val[0].decode().strip("`\n")) == CONFIG


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


# wandb


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """One offline run, closed, whose process then leaves as a rank does; its server would be a socket of ours."""
    pytest.importorskip("wandb")
    script = OPEN + (
        "for step in range(5): run.log(step, {'train/loss': 2.0 ** -step})\n"
        "run.log(4, {'val/top1': 0.75})\n"
        "run.close()\n"
        "left = [p.pid for p in services if p.is_running()]\n"
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


def test_wandb_writes_what_was_logged(tracked):
    assert tracked.code == 0, tracked.output
    history = tracked.history()
    assert values(history, "train/loss") == [(0, 1), (1, 0.5), (2, 0.25), (3, 0.125), (4, 0.0625)]
    assert values(history, "val/top1") == [(4, 0.75)]
    assert tracked.records()[-1].WhichOneof("record_type") == "exit"


def test_wandb_holds_the_config(tracked):
    (run,) = [r.run for r in tracked.records() if r.WhichOneof("record_type") == "run"]
    written = {i.key: json.loads(i.value_json) for i in run.config.update}
    assert {name: written.get(name) for name in CONFIG} == CONFIG


def test_wandb_writes_below_the_run_folder_and_nowhere_else(tracked):
    assert {path.name for path in (tracked.folder / "cwd").iterdir()} == {"run-1", "services", "left"}
    assert [path.name for path in tracked.run_dir.iterdir()] == ["wandb"]
    assert list((tracked.folder / "home").iterdir()) == []
    assert tracked.temporary == []


def test_wandb_prints_nothing_and_calls_nobody(tracked):
    assert tracked.output == ""
    assert not tracked.called


def test_wandbs_service_is_gone_after_close(tracked):
    assert tracked.services
    assert json.loads((tracked.folder / "cwd" / "left").read_text()) == []


def test_a_killed_run_leaves_no_service_and_keeps_its_values(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN + (
        "for step in range(4): run.log(step, {'loss': 1.0})\n"
        "(path,) = run_dir.glob('wandb/offline-run-*/run-*.wandb')\n"
        "deadline = time.monotonic() + 10\n"  # wandb's own interval is 15 s
        "while path.stat().st_size < 500 and time.monotonic() < deadline: time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == -signal.SIGKILL, ended.output
    assert ended.services
    assert ended.service_ends(10)
    assert values(ended.history(), "loss")[:2] == [(0, 1), (1, 1)]


def test_a_service_that_hangs_delays_nothing_but_close_and_that_has_a_limit(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN + (
        "trackers.CLOSE_S = 0.5\n"
        "services[0].suspend()\n"
        "started = time.monotonic()\n"
        "for step in range(5000): run.log(step, {'loss': 1.0})\n"
        "logged = time.monotonic()\n"
        "run.close()\n"
        "print(logged - started, time.monotonic() - logged)\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n"
    )
    ended = Ended(tmp_path, script)
    assert ended.code == 0, ended.output
    logged, closed = map(float, re.search(r"^([\d.]+) ([\d.]+)$", ended.output, re.M).groups())
    assert logged < 2
    assert closed < 5
    assert "tracker: not closed after 0.5 s" in ended.output
    assert ended.services
    assert ended.service_ends(0)


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


def test_online_without_a_key_is_one_clear_line(tmp_path):
    pytest.importorskip("wandb")
    script = OPEN.replace("run = ", "try: run = ").replace(
        "services = ", "except trackers.UserError as error: print(error); sys.exit(2)\nservices = "
    )
    ended = Ended(tmp_path, script, WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9")
    assert ended.code == 2, ended.output
    line = ended.output.strip()
    assert len(line.splitlines()) == 1
    assert line.startswith("TRACK=wandb with WANDB_MODE=online does not start")
    assert line.endswith("leave WANDB_MODE out to track offline")


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
try: open_tracker({package!r}, Path("run-1"), {{}}, 0)
except UserError as error: print(error)
"""


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_one_clear_line(package, tmp_path):
    ended = Ended(tmp_path, BLOCKED.format(package=package))
    assert ended.output == f"TRACK={package} needs {package}: pip install 'data-parallel-bench[track]'\n"


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_folder_of_the_packages_name_is_not_the_package(package, tmp_path):
    """Python takes ./wandb for an empty package where the real one is absent."""
    (tmp_path / "cwd" / package).mkdir(parents=True)
    script = BLOCKED.format(package=package).replace("raise ModuleNotFoundError", "return namespace() #")
    script = (
        "import importlib.machinery\n"
        "def namespace():\n"
        f"    return importlib.machinery.PathFinder.find_spec({package!r}, ['.'])\n" + script
    )
    ended = Ended(tmp_path, script)
    assert ended.output == f"TRACK={package} needs {package}: pip install 'data-parallel-bench[track]'\n"


def test_an_unknown_tracker_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="unknown TRACK=mlflow: choose one of none, tensorboard, wandb"):
        open_tracker("mlflow", tmp_path, CONFIG, 0)


@pytest.mark.parametrize(("kind", "rank"), [("none", 0), *((kind, 1) for kind in SINKS)])
def test_who_does_not_track_writes_nothing(kind, rank, tmp_path):
    tracker = open_tracker(kind, tmp_path, CONFIG, rank)
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []
