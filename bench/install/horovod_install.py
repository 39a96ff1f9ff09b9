"""`bench install-horovod`: Horovod 0.28.1 on the torch that is installed.

installed and right? ── yes ─► one line, done
    │ no
wheel in the cache? ── no ─► compile it (horovod_build.py) ─► into the cache
    │ yes                                                          │
    └─────────────► install ─► import it in a fresh process ◄──────┘
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench import files
from bench.errors import BenchError, UserError
from bench.install.horovod_build import build
from bench.install.horovod_status import (
    IMPORT_S,
    Status,
    cache_dir,
    cached_wheel,
    installed_version,
    mpi_built,
    status,
)  # fmt: skip
from bench.install.steps import PIP, REST_WORKS, install_missing, run_step
from bench.process.tree import capture

CHECK = "import horovod.torch as hvd; print(int(hvd.gloo_built()), int(hvd.nccl_built()))"


def install(
    gpu: str = "auto", force: bool = False, wheel_dir: str | None = None, jobs: int | None = None,
    timeout: float = 1800, mpi: bool = False, quiet: bool = False,
) -> None:  # fmt: skip
    """Install Horovod if it is not there yet. Raises UserError or BenchError with one line.

    gpu: "auto", "none" or "nccl". force: build again. wheel_dir: only build, and put the wheel there. jobs: compilers
    at a time. timeout: seconds after which it gives up. mpi: one that has MPI besides; without it one that has MPI is
    left as it is. quiet: nothing is printed where it is there already.
    """
    now = status(gpu, mpi)
    if now.state == "no torch":
        raise UserError(
            f"torch is not installed for {sys.executable}: run `make setup`, or install torch,"
            " then run `bench install-horovod`"
        )
    if not (force or wheel_dir) and _usable(now, mpi):
        if not quiet:
            print(f"horovod {now.horovod} is installed and fits torch {now.torch}")
        return
    deadline = time.monotonic() + timeout
    with _build_lock(deadline):
        wheel = None if force else cached_wheel(now.label)
        if wheel_dir:
            print(f"wheel: {_copy_to(wheel or build(now, jobs, deadline), wheel_dir)}")
            return
        if wheel and not _install_and_check(wheel):  # built on a machine unlike this one: build it here
            wheel.unlink()
            wheel = None
        if wheel is None and not _install_and_check(build(now, jobs, deadline)):
            raise BenchError(f"Horovod was built but cannot be imported: {import_error()}; {REST_WORKS}")
    print(f"horovod {installed_version()} is installed and fits torch {now.torch}")


def _usable(now: Status, mpi: bool) -> bool:
    """Whether to leave what is installed alone. Someone else's build stays where it can be imported, and has MPI where
    that is asked for."""
    return now.ready or (now.state == "unknown build" and import_error() is None and (not mpi or mpi_built()))


def import_error() -> str | None:
    """Import Horovod in a fresh process: None where it has Gloo, else the last line of what went wrong."""
    with tempfile.TemporaryDirectory() as nowhere:
        result = capture([sys.executable, "-W", "ignore", "-c", CHECK], IMPORT_S, cwd=nowhere)
    if result.code == 0 and result.out.strip().startswith("1 "):
        return None
    if result.code is None:
        return f"its import does not end within {IMPORT_S:g} s"
    return (result.err or result.out).strip().rpartition("\n")[2] or f"exit code {result.code}"


def _copy_to(wheel: Path, folder: str) -> Path:
    """It appears there whole or not at all."""
    target = Path(folder).expanduser().resolve() / wheel.name
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wheel, partial)
        os.replace(partial, target)
    except OSError as error:
        raise UserError(f"cannot write to {target.parent}: {error.strerror}; the wheel is {wheel}") from None
    return target


def _install_and_check(wheel: Path) -> bool:
    """In place of any other Horovod; whether it can then be imported."""
    log = cache_dir() / "logs" / "install.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    soon = time.monotonic() + 600
    install_missing(log, soon)
    command = [*PIP, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    run_step(command, log, "installing the wheel", soon)
    importlib.invalidate_caches()
    return import_error() is None


@contextlib.contextmanager
def _build_lock(deadline: float):
    """Hold the cache folder alone; wait for another build to end, until the deadline."""
    path = cache_dir() / "build.lock"
    over = UserError(f"another build holds {path} and did not end in time; try again")
    lock = contextlib.ExitStack()
    try:
        lock.enter_context(files.locked(path, deadline, over, _say_waiting))
    except OSError as error:
        raise UserError(f"cannot write to {path.parent} ({error.strerror}): set XDG_CACHE_HOME to a folder") from None
    with lock:
        yield


def _say_waiting() -> None:
    print("another Horovod build is running: waiting for it", flush=True)
