"""Runs ``python -m bench …`` the way a person does, and says what came of it."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench.config.combined import is_part
from bench.config.fields import flag_of, in_words
from bench.config.options import FIELDS
from bench.errors import UserError
from bench.install import horovod_status
from bench.launch.engines import mpirun
from bench.process.guard import LAUNCHER_PID
from bench.process.heartbeat import Heartbeat, every_status
from bench.record.read import load
from bench.record.view import Record

ROOT = Path(__file__).resolve().parents[1]
ENGINE_PREFIXES = ("BENCH_", "HOROVOD_", "OMP_", "MKL_", "STUB_NVML_")

# A thread that waits for the others of its process leaves its core to somebody else. By default it would spin, and two
# tests at once on two cores would spend most of their time waiting for spinning threads.
PATIENT = {"OMP_WAIT_POLICY": "passive"}

# Networks of tests (small_resnets.py). Of torchvision's, most of a short run would be arithmetic.
TINY, DROPOUT, NARROW, SMOOTH = (
    {"model": f"{ROOT / 'tests' / 'small_resnets.py'}:{function}"}
    for function in ("two_blocks", "with_dropout", "narrow", "smooth")
)

# The smallest run that is one: a small network and images of 8 pixels on CPU workers, two steps, no baselines.
SMALL = TINY | {"device": "cpu", "image_size": 8, "batch": 6, "warmup": 1, "steps": 2, "baselines": 0, "timeout": 200}
# Its steps last long enough to be seen from outside: each waits for its images.
LASTING = {"storage_ms": 1}

# With CI=true a missing Horovod is not skipped over: the test runs, and fails.
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None and os.environ.get("CI") != "true",
    reason="Horovod is not installed (bench install-horovod); with CI=true this is a failure",
)
needs_mpi = pytest.mark.skipif(
    not horovod_status.mpi_built() or bool(mpirun.absent()),
    reason="no Horovod with MPI is installed (bench install-horovod --mpi), or no mpirun",
)


@dataclass(frozen=True)
class Result:
    """What a command left. ``record`` is that of the run itself, read as JSON and not checked; None without one."""

    code: int
    stdout: str
    stderr: str
    pid: int
    out: Path | None = None

    @property
    def run_dirs(self) -> list[Path]:
        return sorted(p for p in self.out.iterdir() if p.is_dir()) if self.out and self.out.is_dir() else []

    @property
    def run_dir(self) -> Path:
        (folder,) = self.run_dirs
        return folder

    @property
    def record(self) -> dict | None:
        path = self.run_dir / "record.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def loaded(self) -> Record:
        return load(self.run_dir / "record.json")

    def ok(self) -> "Result":
        assert self.code == 0, self.stdout + self.stderr
        return self

    @property
    def last_error_line(self) -> str:
        return (self.stderr.strip().splitlines() or [""])[-1]


def flags(**options) -> list[str]:
    """gpus=2, image_size=8 -> ["--gpus=2", "--image-size=8"]. None leaves a flag out. A field that is a part of another
    option, as sync=0 of INJECT, is written as that option."""
    words, parts = [], {}
    for name, value in options.items():
        f = FIELDS.get(name)
        if f is not None and is_part(f):
            value = value if value is None or f.type is not bool else bool(value)
            if value not in (None, f.default):
                flag, _, text = in_words(f, value).partition("=")
                parts.setdefault(flag.lower().replace("_", "-"), []).append(text)
        elif value is not None:
            words.append(f"--{flag_of(f)[2:] if f is not None else name.replace('_', '-')}={value}")
    return words + [f"--{flag}={','.join(texts)}" for flag, texts in parts.items()]


# `python -m MODULE …`, in which another program replaces Python.
WITH_PYTHON = (
    "import runpy, sys; del sys.argv[0]; sys.executable = {!r}; runpy.run_module(sys.argv[0], None, '__main__', True)"
)


def environment(variables: dict | None = None) -> dict[str, str]:
    """This process's environment less engines' variables, with these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ENGINE_PREFIXES)}
    return clean | PATIENT | (variables or {})


def start(*arguments, env: dict | None = None, module: str = "bench", copies=None) -> subprocess.Popen:
    """Start ``python -m bench`` in the background. env: for ``environment``. copies: the fixture ``forked_programs``:
    then launchers and ranks begin with torch; `bench` itself does not."""
    program = ["-c", WITH_PYTHON.format(copies.python)] if copies else ["-m"]
    return subprocess.Popen(
        [sys.executable, "-Xfaulthandler", *program, module, *map(str, arguments)],
        cwd=ROOT,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen, out: Path | None = None, timeout: float = 240) -> Result:
    """Wait for a command that ``start`` started. Where it hangs, the error says where each of its threads is."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        state = psutil.Process(process.pid).status()
        process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
        process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            error.add_note(f"{process.args} was {state}:\n{process.communicate(timeout=10)[1]}")
        raise
    finally:
        process.kill()
    return Result(process.returncode, stdout, stderr, process.pid, out)


def bench(*arguments, env: dict | None = None, out: Path | None = None, timeout: float = 240) -> Result:
    return finish(start(*arguments, env=env), out, timeout)


def start_run(out: Path, env: dict | None = None, module: str = "bench", copies=None, **options) -> subprocess.Popen:
    return start("run", *flags(**SMALL | options), "--out", out, env=env, module=module, copies=copies)


def run(out: Path, env: dict | None = None, copies=None, **options) -> Result:
    return finish(start_run(out, env, copies=copies, **options), Path(out))


def without_horovod(folder: Path, name: str = "horovod") -> dict[str, str]:
    """An environment in which Horovod, or another package, is not installed. folder: an empty one."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == {name!r} else found(name, *rest)\n"
    )
    return {"PYTHONPATH": str(folder)}


@contextlib.contextmanager
def refuses(*values: str, error: type[Exception] = UserError):
    """What is done in this block raises an error of one line that names these: options, values, paths, ranks."""
    with pytest.raises(error) as caught:
        yield caught
    said = str(caught.value)
    assert "\n" not in said and [value for value in map(str, values) if value not in said] == [], said


def left_behind(pid: int, within: float = 5.0) -> list[str]:
    """What is left, after ``within`` seconds, of the run that ``bench`` process ``pid`` launched: command lines.

    Python's own resource tracker ends by itself a moment after the process that it serves, so there is some time."""
    deadline = time.monotonic() + within
    while (left := descendants(pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def descendants(pid: int) -> list[str]:
    """Every process whose environment says that ``pid`` launched it, even if its parent has changed."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(LAUNCHER_PID) == str(pid):
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found


def wait_for(condition, what: str, within: float = 150):
    """What ``condition`` returns as soon as it is true; fails when it does not come true."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {within} s")
        time.sleep(0.1)
    return value


def both_step(out, folder: str = "*") -> list[Heartbeat]:
    """The heartbeats of both ranks of the one run in ``out``, as soon as they take timed steps."""

    def beats() -> list[Heartbeat]:
        found = [beat for run_dir in out.glob(folder) for beat in every_status(run_dir).values()]
        return found if len(found) == 2 and all(beat.step > 2 for beat in found) else []

    return wait_for(beats, "both ranks step", 300)
