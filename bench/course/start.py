"""``python -m bench.course.start RUN_DIR NUM_RANKS``: start the ranks, end when one fails or all have ended.

Where it is safe (Linux), torch is imported once and the ranks are forked from this fresh process, which has touched
neither a thread nor a device: two ranks start for the price of one import. Elsewhere each rank is a program of its own.
How each ended is left in RUN_DIR/ended<r>: its exit code, or the number of the signal that killed it, negative.

Without arguments it stays (``stay``): a notebook's later calls begin without an import (bench/course/warm.py).
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from bench.files import LINUX

IDLE_S = 600.0  # without a call
FEW_S = 0.5  # after a rank has failed, for the others to say that they have noticed


def main() -> int:
    """Returns 0 when every rank has ended well, else 1 as soon as one has not; the launcher ends the others."""
    if len(sys.argv) == 1:
        return stay()
    run_dir, num_ranks = Path(sys.argv[1]), int(sys.argv[2])
    if LINUX:
        gc.disable()  # until the ranks have joined: see bench/training/task.py
        import torch.distributed  # noqa: F401  before the ranks, for all of them

        return watch(fork, run_dir, num_ranks)
    return watch(run, run_dir, num_ranks)


def watch(start: Callable[[Path, int], int], run_dir: Path, num_ranks: int, launcher: int = 0) -> int:
    """Start every rank and wait. start: ``fork`` or ``run``. launcher: a process to wait for, too."""
    ranks = {start(run_dir, rank): rank for rank in range(num_ranks)}
    while ranks or launcher:
        pid, status = os.wait()
        note(run_dir, ranks.pop(pid, None), status)
        if pid == launcher:
            launcher = 0
        if status:
            linger(run_dir, ranks)
            return 1
    return 0


def note(run_dir: Path, rank: int | None, status: int) -> None:
    """Leave how a rank ended. rank: None for a process that is none."""
    if rank is not None:
        (run_dir / f"ended{rank}").write_text(str(os.waitstatus_to_exitcode(status)))


def linger(run_dir: Path, ranks: dict[int, int]) -> None:
    """A rank has failed: give the others, by process id, a moment to say that they have noticed, and note their end."""
    deadline = time.monotonic() + FEW_S
    with contextlib.suppress(ChildProcessError):  # none is left
        while ranks and time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            note(run_dir, ranks.pop(pid, None), status)
            time.sleep(0.02)


def fork(run_dir: Path, rank: int, before: Callable[[Path, int], None] | None = None) -> int:
    """A rank as a copy of this process. Returns its process id; never returns in the copy. before: of ``rank.live``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: there are none that hold a lock
        pid = os.fork()
    if pid == 0:
        import numpy

        from bench.course import rank as program

        numpy.random.seed()  # Python's own random numbers differ in a copy, numpy's would not
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        program.live(run_dir, rank, before)
    return pid


def run(run_dir: Path, rank: int) -> int:
    """A rank as a fresh process. Returns its process id."""
    variables = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    return os.posix_spawn(sys.executable, [sys.executable, "-m", "bench.course.rank", str(run_dir)], variables)


# --- The one that stays ---------------------------------------------------------------------------------------------


def stay() -> int:
    """Serve the calls that come through standard input, one JSON object each with a pipe to answer by, until the
    process at its other end is gone, or has had none for a while."""
    caller, used = os.getppid(), time.monotonic()
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    gc.disable()
    preload(["torch.distributed"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for those that serve
    while os.getppid() == caller and time.monotonic() - used < IDLE_S:
        if not select.select([channel], [], [], 1.0)[0]:
            continue
        message, pipes, _, _ = socket.recv_fds(channel, 2**20, 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return 0
        call, used = json.loads(message), time.monotonic()
        preload(call["modules"])
        if os.fork() == 0:
            channel.close()
            serve(call, pipes[0])
        os.close(pipes[0])
        used = time.monotonic()
    return 0


def preload(modules: list[str]) -> None:
    """Import what the ranks will. One that cannot be imported is for a rank to complain of."""
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def serve(call: dict, answer: int) -> None:
    """One call, in a copy of the process that stays, as ``main`` would in a process of its own. Never returns."""
    code = 1
    try:
        mark(call["variables"][call["mark"]], call["mark"])
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        run_dir = Path(call["run_dir"])
        log = os.open(run_dir / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(call["variables"])
        os.write(answer, f"{os.getpid()}\n".encode())
        code = of_call(call, run_dir, answer)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.write(answer, f"{code}\n".encode())
        os._exit(code)


def of_call(call: dict, run_dir: Path, answer: int) -> int:
    """Start the ranks of a call and the launcher that it names, and wait. Returns the exit code."""
    launcher = 0
    if command := call["command"]:
        launcher = os.posix_spawn(command[0], command, os.environ)

    def before(run_dir: Path, rank: int) -> None:
        os.close(answer)  # it ends with the process that serves
        if command:
            take_variables(run_dir, rank)

    return watch(lambda run_dir, rank: fork(run_dir, rank, before), run_dir, call["num_ranks"], launcher)


def mark(value: str, name: str) -> None:
    """Put a call's mark where other processes see it: into the environment with which this process began. It is as
    long as the one that is there."""
    import ctypes

    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    ctypes.memmove(library.getenv(name.encode()), value.encode(), len(value))


def take_variables(run_dir: Path, rank: int) -> None:
    """Wait for the variables that the launcher gives to a rank, and take them over (bench/course/stand_in.py)."""
    path = run_dir / f"variables{rank}"
    while not path.exists():
        time.sleep(0.01)
    for name in ("RANK", "LOCAL_RANK"):  # those are another launcher's
        del os.environ[name]
    os.environ.update(json.loads(path.read_text()))


if __name__ == "__main__":
    sys.exit(main())
