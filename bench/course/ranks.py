"""``run_on_ranks``: a function of a notebook on N fresh processes, output marked by rank, results back.

A notebook must not fork its kernel: a copy could not use CUDA, and would share the kernel's random numbers. So the
pickled function goes through a file to processes of the project's launcher, and the results come back through files.
In a notebook on Linux the ranks are forked from a preloaded process, in a fraction of a second.
"""

import contextlib
import json
import linecache
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.course.start import IDLE_S
from bench.errors import RunFailed, UserError
from bench.files import LINUX, PROJECT
from bench.launch import supervise
from bench.launch.command import thread_variables
from bench.launch.engines import horovodrun
from bench.launch.node import Node, Placement
from bench.launch.ports import free_port
from bench.measure import steady
from bench.measure.environment import usable_cores
from bench.measure.nvml import visible_gpus
from bench.process.guard import LAUNCHER_PID, error_path
from bench.process.tree import MARK, Tree

STARTING_S = 120.0  # to import torch and join the group, on a busy machine
ENGINES = ("torch", "bare", "horovod")
MOST_LINES = 500  # of one rank, so that a printing loop does not fill the notebook
MOST_BYTES = 64 * 2**20  # of one rank, so that it does not fill the disk
WIDEST = 2000  # characters of a line
# Hidden: our frames below the notebook's function, and what Horovod and Gloo log when another rank has gone (the
# exception that follows says the same).
OUR_FRAMES = re.compile(r'  File "[^"\n]*bench/course/start\.py", line .*\n(?:    .*\n)*')
ECHO = re.compile(r"^\[.*(Horovod background loop uncaught exception|\] Gloo connectFullMesh failed)")
SOURCE_PLACE = re.compile(r"\[/\S+\.(?:cc|cpp|h|hpp):\d+\] ")


def run_on_ranks(
    function: Callable,
    num_ranks: int = 2,
    *arguments,
    engine: str = "torch",
    timeout: float = 60.0,
    quiet: bool = False,
) -> list:
    """Call ``function(*arguments)`` on ``num_ranks`` fresh processes; returns the results by rank.

    engine: "torch": the ranks have joined the default process group (Gloo for CPU tensors, NCCL for GPU tensors);
    "bare": only RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set; "horovod": started by horovodrun,
    after ``hvd.init()``. timeout: seconds for the function, from when all ranks have started it. quiet: hide output.

    Raises UserError when the function, its arguments or its result cannot be pickled, or Horovod is missing; RunFailed
    when a rank raises, dies or is late: its ``failure`` holds rank, kind, message and traceback. No process and no
    file is left.
    """
    if engine not in ENGINES:
        raise UserError(f"unknown engine={engine!r}: choose one of {', '.join(ENGINES)}")
    if not isinstance(num_ranks, int) or not 1 <= num_ranks <= 64:
        raise UserError(f"num_ranks={num_ranks!r}: give a whole number from 1 to 64")
    if not timeout > 0:
        raise UserError(f"timeout={timeout!r}: give a number of seconds above 0")
    files = cell_files()
    sources = {name: linecache.getlines(name) for name in files if name.endswith(".py")}  # for the ranks' tracebacks
    call = pickle_call(function, arguments, engine, sources)
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        run_dir = Path(folder)
        output = RankOutput(run_dir, num_ranks, quiet, files)
        (run_dir / "call").write_bytes(call)
        warm = LINUX and ipython() is not None and engine != "horovod" and free.acquire(blocking=False)
        node = (WarmNode if warm else Node)(Placement(range(num_ranks)), run_dir)
        try:
            command, environment = start_command(engine, run_dir, num_ranks, timeout)
            supervise.run(
                [node], lambda node: node.start(command, environment), run_dir, timeout, output.show,
                starting=STARTING_S,
            )  # fmt: skip
            output.finish()
        except UserError:
            output.finish()
            raise
        except RunFailed as error:
            raise failure_of(error, output, run_dir, num_ranks) from None
        finally:
            if warm:
                free.release()
        return [read_result(run_dir, rank) for rank in range(num_ranks)]


def pickle_call(function: Callable, *others) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((function, *others))
    except Exception as error:
        raise UserError(f"the function cannot be sent to other processes: {error}") from None


def start_command(engine: str, run_dir: Path, num_ranks: int, timeout: float) -> tuple[list[str], dict[str, str]]:
    """The command that starts the ranks as new programs, and their environment."""
    environment = {
        **os.environ,
        **thread_variables(max(1, usable_cores() // num_ranks)),
        "PYTHONUNBUFFERED": "1",
        steady.STARTED_AT: str(steady.now()),
        **steady.variables(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
    if engine == "horovod":
        command = horovodrun.start(num_ranks, ["-m", "bench.course.start", str(run_dir)])
        return command, environment | {horovodrun.GLOO_TIMEOUT: str(int(timeout + STARTING_S))}
    command = [sys.executable, "-m", "bench.course.start", str(run_dir), str(num_ranks)]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}
    return command, environment | address


def ipython():
    """The notebook's shell; None outside IPython."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def cell_files() -> dict[str, str]:
    """File names of cells in tracebacks -> "cell [5]". Empty outside IPython."""
    names = getattr(getattr(ipython(), "compile", None), "_filename_map", {})
    return {name: f"cell [{count}]" for name, count in names.items()}


# --- The preloaded process --------------------------------------------------------------------------------------------
# ``stay`` of bench/course/start.py: it has imported torch, has no threads, touches no device and never runs a cell's
# code. It is replaced when the environment or the working folder has changed, because libraries read some variables at
# import. It ends with the kernel, or after ten idle minutes. multiprocessing's forkserver cannot be replaced in this
# way, and gives a call no session and no mark by which its processes are found and ended.

# Variables that may differ between calls: no import reads them. torch sets the last one in the kernel when it makes the
# first optimizer.
OF_A_CALL = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", steady.STARTED_AT, steady.ANCHOR, LAUNCHER_PID,
             "TORCHINDUCTOR_CACHE_DIR")  # fmt: skip
MARGIN_S = 60.0  # before the end of its idle time it is not used any more


class Starter:
    def __init__(self, variables: dict[str, str]):
        self.variables, self.folder, self.kernel = variables, os.getcwd(), os.getpid()
        self.used = time.monotonic()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.tree, command = Tree(grace_s=0.0), [sys.executable, "-m", "bench.course.start"]
        with theirs:
            self.tree.start(command, variables, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def fits(self, variables: dict[str, str]) -> bool:
        fresh = time.monotonic() - self.used < IDLE_S - MARGIN_S
        same = self.variables == variables and self.folder == os.getcwd() and self.kernel == os.getpid()
        return fresh and same and self.tree.wait(0) is None

    def call(self, call: dict) -> "Call":
        """Request a call's ranks; does not wait for them."""
        self.used = time.monotonic()
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):  # it is gone: the pipe ends without an answer
            socket.send_fds(self.channel, [json.dumps(call).encode()], [writing])
        os.close(writing)
        return Call(reading)

    def stop(self) -> None:
        self.channel.close()
        if self.kernel == os.getpid():  # not in a copy of the kernel
            self.tree.end()


class Call:
    """The process that serves a call, with the interface of ``subprocess.Popen``."""

    def __init__(self, answer: int):
        self.answer, self.received, self.returncode = answer, b"", None

    @property
    def pid(self) -> int | None:
        self.poll()
        return int(self.received.split()[0]) if b"\n" in self.received else None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; -9 if it ended without one. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.answer], [], [], left)[0]:
                raise subprocess.TimeoutExpired("the ranks", timeout)
            more = os.read(self.answer, 100)
            self.received += more
            if not more:
                os.close(self.answer)
                codes = self.received.split()[1:]
                self.returncode = int(codes[0]) if codes else -signal.SIGKILL
        return self.returncode


class WarmNode(Node):
    """Ranks forked from the preloaded process. Use one at a time, under ``free``."""

    def start(self, argv: list[str], environment: dict) -> None:
        variables = {name: value for name, value in environment.items() if name not in OF_A_CALL}
        own = {name: environment[name] for name in OF_A_CALL if name in environment}
        own |= {LAUNCHER_PID: str(os.getpid()), **self.tree.mark}
        call = {"run_dir": str(self.run_dir), "num_ranks": len(self.placement.ranks), "variables": own, "mark": MARK}
        # The first optimizer imports torch._dynamo, which takes as long as torch. With GPUs an import might touch one,
        # which a copy could not use then.
        call["modules"] = [] if visible_gpus() else ["torch._dynamo"]
        if kept and not kept[0].fits(variables):
            kept.pop().stop()
        if not kept:
            kept.append(Starter(variables))
        self.starter = kept[0]
        self.tree.process = self.starter.call(call)

    def end(self) -> None:
        if self.tree.process.pid is None:  # it is about to start the ranks
            self.starter.stop()
        super().end()


kept: list[Starter] = []  # the preloaded process, if there is one
free = threading.Lock()  # a second call at the same time starts its ranks as new programs


# --- Results and failures ---------------------------------------------------------------------------------------------


def read_result(run_dir: Path, rank: int):
    try:
        return pickle.loads((run_dir / f"result{rank}").read_bytes())
    except FileNotFoundError:
        raise failed(rank, "killed", f"rank {rank} ended before the function returned") from None
    except Exception as error:
        raise UserError(f"the function's return value on rank {rank} cannot be unpickled in the notebook ({error}): "
                        "return tensors, numbers or strings, in lists or dicts") from None  # fmt: skip


def failed(rank: int, kind: str, message: str, trace: str = "") -> RunFailed:
    error = RunFailed(message)
    error.failure = {"rank": rank, "kind": kind, "message": message, "traceback": trace}
    return error


def failure_of(error: RunFailed, output: "RankOutput", run_dir: Path, num_ranks: int) -> BaseException:
    failure = error.failure
    kind, rank, message = failure["kind"], failure["rank"], failure["message"]
    if kind == "interrupted":
        return KeyboardInterrupt()
    if kind not in ("hung", "flooded"):  # a rank that hangs has written its stacks to the log
        output.finish()
        output.print_errors(read_reports(run_dir, num_ranks), rank if kind == "raised" else None)
    if kind == "launcher" and not output.quiet:
        print(failure["traceback"], flush=True)
    if kind == "killed":
        message = how_it_ended(run_dir, rank) or message
    message = message.replace("(TIMEOUT)", "(timeout=)").replace("TIMEOUT", "timeout=")
    message, trace = output.with_cell_names(message), output.with_cell_names(failure["traceback"])
    places = re.findall(r'File "(cell \[\d+\])", line (\d+), in (\S+)', trace) if kind == "raised" else []
    if places:
        cell, line, name = places[-1]  # the innermost one
        message += f" ({cell}, line {line}, in {name})"
    return failed(rank, kind, message, trace)


def read_reports(run_dir: Path, num_ranks: int) -> list[dict]:
    reports = []
    for rank in range(num_ranks):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            reports.append(json.loads(error_path(run_dir, rank).read_text()))
    return [report for report in reports if report["traceback"]]


def how_it_ended(run_dir: Path, rank: int) -> str:
    """For a rank that left no error. Empty if bench.course.start has not seen it end."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        code = int((run_dir / f"ended{rank}").read_text())
        if code >= 0:
            return f"rank {rank} ended with exit code {code} before the function returned"
        name = signal.Signals(-code).name
        return f"rank {rank} was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return ""


# --- Output -----------------------------------------------------------------------------------------------------------


class RankOutput:
    """Prints the ranks' logs as they grow. files: as ``cell_files`` returns them."""

    def __init__(self, run_dir: Path, num_ranks: int, quiet: bool = False, files: dict[str, str] | None = None):
        self.logs = [Path(run_dir) / f"rank{rank}.log" for rank in range(num_ranks)]
        self.read = [0] * num_ranks  # bytes
        self.lines = [0] * num_ranks
        self.quiet, self.files = quiet, files or {}

    def show(self, beats: object = None, rows: object = None) -> None:
        """Print the complete new lines. beats, rows: what ``supervise`` passes. Raises RunFailed above MOST_BYTES."""
        for rank, log in enumerate(self.logs):
            if log.exists() and log.stat().st_size > MOST_BYTES:
                message = f"rank {rank} has printed more than {MOST_BYTES >> 20} MiB, and was stopped"
                raise failed(rank, "flooded", message)
            self.print_new(rank, log)

    def finish(self) -> None:
        self.show()
        for rank, log in enumerate(self.logs):
            self.print_new(rank, log, rest=True)

    def print_new(self, rank: int, log: Path, rest: bool = False) -> None:
        if self.quiet or self.lines[rank] > MOST_LINES or not log.exists():
            return
        with log.open("rb") as file:
            file.seek(self.read[rank])
            text = file.read()
        if not rest:
            text = text[: text.rfind(b"\n") + 1]
        if not text:
            return
        self.read[rank] += len(text)
        printed = []
        for line in self.with_cell_names(text.decode(errors="replace").removesuffix("\n")).split("\n"):
            if ECHO.match(line):
                continue
            self.lines[rank] += 1
            if self.lines[rank] <= MOST_LINES:
                printed.append(line if len(line) <= WIDEST else f"{line[:WIDEST]}…")
            elif self.lines[rank] == MOST_LINES + 1:
                printed.append(f"… more than {MOST_LINES} lines: the others are not shown")
        self.print(rank, printed)

    def print(self, rank: int, lines: list[str]) -> None:
        if lines and not self.quiet:  # one call, because each is a message to the notebook
            print(*(f"[rank {rank}] {line}".rstrip() for line in lines), sep="\n", flush=True)

    def print_errors(self, reports: list[dict], first: int | None) -> None:
        """The traceback of the rank that failed first (None: no rank), one line of each that failed because of it."""
        for report in sorted(reports, key=lambda r: r["rank"] != first):
            if report["rank"] == first:
                self.print(first, self.with_cell_names(report["traceback"]).rstrip().split("\n"))
            else:
                why = textwrap.shorten(SOURCE_PLACE.sub("", report["message"]), 110, placeholder=" …")
                self.print(report["rank"], [f"stopped, too: {why}"])

    def with_cell_names(self, text: str) -> str:
        text = OUR_FRAMES.sub("", text)
        for name, cell in self.files.items():
            path = Path(name)
            text = text.replace(name, cell).replace(f"{path.parent.name}/{path.name}", cell)
        return text
