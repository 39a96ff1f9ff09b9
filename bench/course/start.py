"""``python -m bench.course.start RUN_DIR NUM_RANKS``: start the ranks, end when one fails or all have ended.

On Linux, torch is imported once and the ranks are forked from this fresh process, which has no threads and has touched
no device. Elsewhere each rank is a new program. RUN_DIR/ended<r> gets each rank's exit code (-N: killed by signal N).

Without arguments it is the preloaded process that serves a notebook's later calls (bench/course/warm.py).
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
NOTICE_S = 0.5  # after a rank has failed, for the others to report that they have noticed


def main() -> int:
    """Returns 0 when every rank has ended well, else 1 as soon as one has not; the launcher ends the others."""
    if len(sys.argv) == 1:
        return stay()
    run_dir, num_ranks = Path(sys.argv[1]), int(sys.argv[2])
    if LINUX:
        gc.disable()  # until the ranks have joined: see bench/training/task.py
        import torch.distributed  # noqa: F401  before the ranks, for all of them

        return watch(fork, run_dir, num_ranks)
    return watch(spawn, run_dir, num_ranks)


def watch(start: Callable[[Path, int], int], run_dir: Path, num_ranks: int, launcher: int = 0) -> int:
    """Start every rank and wait. start: ``fork`` or ``spawn``. launcher: id of a process to wait for, too."""
    ranks = {start(run_dir, rank): rank for rank in range(num_ranks)}

    def record(pid: int, status: int) -> None:
        if (rank := ranks.pop(pid, None)) is not None:
            (run_dir / f"ended{rank}").write_text(str(os.waitstatus_to_exitcode(status)))

    while ranks or launcher:
        pid, status = os.wait()
        record(pid, status)
        if pid == launcher:
            launcher = 0
        if status:
            deadline = time.monotonic() + NOTICE_S
            with contextlib.suppress(ChildProcessError):  # none is left
                while ranks and time.monotonic() < deadline:
                    record(*os.waitpid(-1, os.WNOHANG))
                    time.sleep(0.02)
            return 1
    return 0


def fork(run_dir: Path, rank: int, before: Callable[[Path, int], None] | None = None) -> int:
    """Start a rank as a copy of this process; returns its process id. before: as in ``rank.live``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: none here holds a lock
        pid = os.fork()
    if pid == 0:
        import numpy

        from bench.course import rank as program

        numpy.random.seed()  # Python reseeds its random numbers in a copy, numpy does not
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        program.live(run_dir, rank, before)
    return pid


def spawn(run_dir: Path, rank: int) -> int:
    """Start a rank as a new program; returns its process id."""
    variables = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    return os.posix_spawn(sys.executable, [sys.executable, "-m", "bench.course.rank", str(run_dir)], variables)


# --- The preloaded process --------------------------------------------------------------------------------------------


def stay() -> int:
    """Serve the calls from standard input, each a JSON object with a pipe for the answer, until the caller is gone or
    IDLE_S have passed without one."""
    caller, used = os.getppid(), time.monotonic()
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    gc.disable()
    preload(["torch.distributed"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies that serve calls
    while os.getppid() == caller and time.monotonic() - used < IDLE_S:
        if not select.select([channel], [], [], 1.0)[0]:
            continue
        message, pipes, _, _ = socket.recv_fds(channel, 2**20, 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return 0
        call = json.loads(message)
        preload(call["modules"])
        if os.fork() == 0:
            channel.close()
            serve(call, pipes[0])
        os.close(pipes[0])
        used = time.monotonic()
    return 0


def preload(modules: list[str]) -> None:
    """Import what the ranks will import. An import error is left for a rank to report."""
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def serve(call: dict, answer: int) -> None:
    """Run one call in a copy of the preloaded process. Writes its process id and then the exit code to ``answer``.
    Never returns."""
    code, command = 1, call["command"]

    def before(run_dir: Path, rank: int) -> None:
        os.close(answer)  # it must close when the serving process ends
        if command:
            take_variables(run_dir, rank)

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
        launcher = os.posix_spawn(command[0], command, os.environ) if command else 0
        code = watch(lambda run_dir, rank: fork(run_dir, rank, before), run_dir, call["num_ranks"], launcher)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.write(answer, f"{code}\n".encode())
        os._exit(code)


def mark(value: str, name: str) -> None:
    """Overwrite a variable in the initial environment, where other processes read it (same length as before)."""
    import ctypes

    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    ctypes.memmove(library.getenv(name.encode()), value.encode(), len(value))


def take_variables(run_dir: Path, rank: int) -> None:
    """Wait for the variables that horovodrun gives to a rank (bench/course/stand_in.py), and set them."""
    path = run_dir / f"variables{rank}"
    while not path.exists():
        time.sleep(0.01)
    for name in ("RANK", "LOCAL_RANK"):  # of the other launcher
        del os.environ[name]
    os.environ.update(json.loads(path.read_text()))


if __name__ == "__main__":
    sys.exit(main())
