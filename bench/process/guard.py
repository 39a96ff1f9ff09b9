"""Guards every rank, so that no run hangs, no process is orphaned and every failure is named: output goes to
RUN_DIR/rank<r>.log; an exception becomes a JSON file; SIGTERM works inside a collective, and the status says
"terminated"; without its launcher the rank ends; SIGUSR1 writes all stacks; RUN_DIR/.collectives-wanted requests the
pending NCCL collectives."""

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
import threading
import traceback
from pathlib import Path

from bench.errors import UserError
from bench.files import PROC, atomic_write
from bench.measure import steady
from bench.process.heartbeat import PHASES
from bench.process.tree import is_running

LAUNCHER_PID = "BENCH_LAUNCHER_PID"  # set by the launcher; a rank ends when that process is gone
JOINS = "BENCH_JOINS"  # set by the launcher where ranks watch themselves
RANK_IN = "BENCH_RANK_IN"  # set by the launcher: the name of the variable in which a process finds its rank


def error_path(run_dir: Path, rank: int) -> Path:
    """The error report of a rank that raised."""
    return Path(run_dir) / f".rank{rank}.error.json"


def wanted_path(run_dir: Path) -> Path:
    """The launcher creates it to request the pending NCCL collectives."""
    return Path(run_dir) / ".collectives-wanted"


def collectives_path(run_dir: Path, rank: int) -> Path:
    """A rank's answer: JSON of torch's flight recorder, empty without NCCL."""
    return Path(run_dir) / f".rank{rank}.collectives.json"


def unfinished_collectives() -> str:
    """This process's pending NCCL collectives as the flight recorder writes them. It does not block."""
    c10d = sys.modules.get("torch._C._distributed_c10d") or sys.modules.get("torch._C")
    c10d = getattr(c10d, "_distributed_c10d", c10d)
    dump = getattr(c10d, "_dump_nccl_trace_json", None)
    try:
        return dump(True, True).decode() if dump else ""
    except Exception:  # another version of torch: the stacks are written anyway
        return ""


class Guard:
    """A context manager around a rank's life that ends the process itself. in_log: log tracebacks, too."""

    ends = (signal.SIGTERM,)  # the signals that end a rank; the launcher handles Ctrl-C

    def __init__(self, run_dir: Path, rank: int, in_log: bool = True):
        self.run_dir, self.rank, self.in_log = run_dir, rank, in_log
        self.status = None  # a StatusWriter, once it exists

    def __enter__(self) -> "Guard":
        error_path(self.run_dir, self.rank).unlink(missing_ok=True)  # of a rank that this one replaces
        log = os.open(self.run_dir / f"rank{self.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout.reconfigure(line_buffering=True)
        with contextlib.suppress(OSError):  # out of memory, the kernel kills a rank and not the command that reports it
            (PROC / "self/oom_score_adj").write_text("500")
        faulthandler.enable(all_threads=False)  # a crash in C code leaves its stack in the log
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        signals_in, self.signals_out = os.pipe()
        os.set_blocking(self.signals_out, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in self.ends:
            signal.signal(number, lambda *_: None)  # the watcher thread acts on it
        signal.set_wakeup_fd(self.signals_out, warn_on_full_buffer=False)
        launcher = int(os.environ.get(LAUNCHER_PID, os.getppid()))
        threading.Thread(target=self.watch, args=(signals_in, launcher), name="guard", daemon=True).start()
        return self

    def watch(self, signals_in: int, launcher: int) -> None:
        """End the process on SIGTERM, or when the launcher is gone. C code writes the wake-up pipe, so this works while
        the main thread is inside a collective."""
        answered = False
        while True:
            ready, _, _ = select.select([signals_in], [], [], 1.0)
            came = os.read(signals_in, 64) if ready else b""
            if number := next((number for number in self.ends if number in came), None):
                self.report(False, f"was ended by {number.name}", "")
                self.leave("terminated", 128 + number)
            if not alive(launcher):
                self.leave("terminated", 1)
            if not answered and wanted_path(self.run_dir).exists():
                answered = True
                with contextlib.suppress(OSError), atomic_write(collectives_path(self.run_dir, self.rank)) as path:
                    path.write_text(unfinished_collectives())

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.leave("done", 0)
        user_error, trace = isinstance(error, UserError), "".join(traceback.format_exception(kind, error, trace))
        more = {"out_of_memory": True} if is_out_of_memory(error) else {}
        self.report(user_error, str(error) if user_error else f"{kind.__name__}: {error}", trace, **more)
        if self.in_log:
            with contextlib.suppress(OSError):  # the disk is full
                print(trace, file=sys.stderr, flush=True)
        self.leave("raised", 2 if user_error else 1)

    def report(self, user_error: bool, message: str, trace: str, **more) -> None:
        """Write why this rank ends. The first of all ranks' reports is the cause."""
        found = {"rank": self.rank, "time": steady.now(), "user_error": user_error, "message": message,
                 "traceback": trace, "phase": self.phase, **more}  # fmt: skip
        with contextlib.suppress(OSError):  # the disk is full: the log may still have the traceback
            error_path(self.run_dir, self.rank).write_text(json.dumps(found))

    @property
    def phase(self) -> str:
        return self.status.current if self.status else PHASES[0]

    def leave(self, phase: str, code: int) -> None:
        """Exit without the libraries' destructors, which may wait for other ranks."""
        if self.status:
            self.status.phase(phase)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch found no memory on the device. torch is imported if it has raised."""
    torch = sys.modules.get("torch")
    return bool(torch) and isinstance(error, torch.OutOfMemoryError)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    import psutil

    try:
        return is_running(psutil.Process(pid))
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False
