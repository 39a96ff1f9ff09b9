"""The processes of ``run_on_ranks``: ``python -m bench.course.start …``

RUN_DIR NUM_RANKS  start the ranks, end when one fails or all have ended. On Linux, torch is imported once and the ranks
                   are forked from this fresh process, which has no threads and has touched no device. Elsewhere each
                   rank is a new program. RUN_DIR/ended<r> gets a rank's exit code (-N: killed by signal N).
RUN_DIR            one rank, which the environment names
(nothing)          the preloaded process that serves a notebook's later calls (bench/course/ranks.py)
"""

import contextlib
import ctypes
import gc
import importlib
import json
import linecache
import os
import pickle
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from bench.errors import UserError
from bench.files import LINUX
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter

IDLE_S = 600.0  # without a call
NOTICE_S = 0.5  # after a rank has failed, for the others to report that they have noticed


def main() -> int:
    """Returns 0 when every rank has ended well, else 1 as soon as one has not; the launcher ends the others."""
    if len(sys.argv) == 1:
        return serve_calls()
    run_dir = Path(sys.argv[1])
    if len(sys.argv) == 2:
        gc.disable()  # until the rank has joined: see bench/training/task.py
        run_call(run_dir, int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0"))))
    num_ranks = int(sys.argv[2])
    if LINUX:
        gc.disable()
        import torch.distributed  # noqa: F401  before the ranks, for all of them

        return watch(fork, run_dir, num_ranks)
    return watch(spawn, run_dir, num_ranks)


def watch(start: Callable[[Path, int], int], run_dir: Path, num_ranks: int) -> int:
    """Start every rank and wait. Returns 0, or 1 soon after a rank has failed."""
    ranks = {start(run_dir, rank): rank for rank in range(num_ranks)}

    def record(pid: int, status: int) -> None:
        if (rank := ranks.pop(pid, None)) is not None:
            (run_dir / f"ended{rank}").write_text(str(os.waitstatus_to_exitcode(status)))

    while ranks:
        pid, status = os.wait()
        record(pid, status)
        if status:
            deadline = time.monotonic() + NOTICE_S
            with contextlib.suppress(ChildProcessError):  # none is left
                while ranks and time.monotonic() < deadline:
                    record(*os.waitpid(-1, os.WNOHANG))
                    time.sleep(0.02)
            return 1
    return 0


def fork(run_dir: Path, rank: int, answer: int | None = None) -> int:
    """Start a rank as a copy of this process. answer: a pipe of ``serve`` that the rank must not keep open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: none here holds a lock
        pid = os.fork()
    if pid == 0:
        import numpy

        numpy.random.seed()  # Python reseeds its random numbers in a copy, numpy does not
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        if answer is not None:
            os.close(answer)
        run_call(run_dir, rank)
    return pid


def spawn(run_dir: Path, rank: int) -> int:
    variables = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    return os.posix_spawn(sys.executable, [sys.executable, "-m", "bench.course.start", str(run_dir)], variables)


# --- One rank ---------------------------------------------------------------------------------------------------------


def run_call(run_dir: Path, rank: int) -> None:
    """Join the other ranks, call the function, leave its result. Never returns: the guard ends the process."""
    with Guard(run_dir, rank, in_log=False) as guard:  # the notebook shows the first error only
        import cloudpickle

        guard.status = StatusWriter(run_dir, rank)
        guard.status.phase("joining the group")
        function, arguments, engine, sources = pickle.loads((run_dir / "call").read_bytes())
        for name, lines in sources.items():  # so that a traceback shows the cell's lines
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        join(engine)
        gc.freeze()
        gc.enable()
        guard.status.phase("running")
        result = function(*arguments)
        guard.status.phase("collecting results")
        try:
            (run_dir / f"result{rank}").write_bytes(cloudpickle.dumps(result))
        except Exception as error:
            kind = type(result).__name__
            raise UserError(f"the function's return value ({kind}) cannot be pickled ({error}): return tensors, "
                            "numbers or strings, in lists or dicts") from None  # fmt: skip
        destroy_group(engine)


def join(engine: str) -> None:
    if engine == "torch":
        import torch.distributed as dist

        dist.init_process_group()
    elif engine == "horovod":
        import horovod.torch as hvd

        hvd.init()


def destroy_group(engine: str) -> None:
    if engine == "torch":
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()  # rank 0's store must not end while another rank uses it
            dist.destroy_process_group()
    elif engine == "horovod":
        import horovod.torch as hvd

        hvd.shutdown()


# --- The preloaded process --------------------------------------------------------------------------------------------


def serve_calls() -> int:
    """Serve calls from standard input: a JSON object, and a pipe for the answer. Ends with its parent, or when idle."""
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
    """One call, in a copy of the preloaded process. Answers its process id and then the exit code. Never returns."""
    code = 1
    try:
        # Set the mark in the initial environment, where other processes read it. It is as long as the one there.
        library = ctypes.CDLL(None)
        library.getenv.restype = ctypes.c_void_p
        value = call["variables"][call["mark"]].encode()
        ctypes.memmove(library.getenv(call["mark"].encode()), value, len(value))
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        run_dir = Path(call["run_dir"])
        log = os.open(run_dir / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(call["variables"])
        os.write(answer, f"{os.getpid()}\n".encode())
        code = watch(lambda run_dir, rank: fork(run_dir, rank, answer), run_dir, call["num_ranks"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.write(answer, f"{code}\n".encode())
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
