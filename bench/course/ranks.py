"""A function of a notebook on N ranks: fresh processes, output marked by rank, results back, errors in the cell.

A notebook must not fork its kernel: a CUDA device cannot be used again in the copy, and the copy would inherit the
kernel's random numbers. So the function travels in a file, to processes that the project's launcher starts, watches
and ends; what it returns comes back in a file, too. In a notebook the ranks are forked from a process that stays
(bench/course/warm.py).
"""

import contextlib
import json
import os
import pickle
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.course import stand_in, warm
from bench.course.output import RankOutput
from bench.errors import RunFailed, UserError
from bench.files import PROJECT
from bench.launch import supervise
from bench.launch.command import thread_variables
from bench.launch.engines import horovodrun
from bench.launch.node import Node, Placement
from bench.launch.ports import free_port
from bench.measure import steady
from bench.measure.environment import usable_cores
from bench.process.guard import error_path

RANK_PROGRAM = "bench.course.rank"
STARTING_S = 120.0  # for torch to be imported and the ranks to meet, on a busy machine


def run_on_ranks(
    function: Callable,
    num_ranks: int = 2,
    *arguments,
    engine: str = "torch",
    timeout: float = 60.0,
    quiet: bool = False,
) -> list:
    """Call ``function(*arguments)`` on every one of ``num_ranks`` fresh processes; returns the results by rank.

    engine: "torch", the ranks have joined the default process group when the function begins (Gloo for CPU tensors,
    and NCCL for those on GPUs); "bare", only RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set;
    "horovod", started by horovodrun, and ``hvd.init()`` has been called. timeout: seconds for the function, counted
    from when every rank has begun. quiet: print nothing of what the ranks print.

    Raises UserError when the function, its arguments or its result cannot travel, or Horovod is missing; RunFailed when
    a rank raises, dies, or is not back in time: its ``failure`` holds rank, kind, message and traceback. An interrupt
    of the kernel stays one. No process and no file is left behind.
    """
    check(num_ranks, engine, timeout)
    files = cell_files()
    call = packed((function, arguments, engine, sources(files)))
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        run_dir = Path(folder)
        output = RankOutput(run_dir, num_ranks, quiet, files)
        (run_dir / "call").write_bytes(call)
        try:
            with node_for(engine, num_ranks, run_dir) as node:
                command, variables = START[engine](run_dir, num_ranks, timeout, isinstance(node, warm.WarmNode))
                environment = {**os.environ, **common_variables(num_ranks), **variables}
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
        return [result_of(run_dir, rank) for rank in range(num_ranks)]


@contextlib.contextmanager
def node_for(engine: str, num_ranks: int, run_dir: Path) -> Iterator[Node]:
    """The node that starts the ranks of a call: from the process that stays, or afresh."""
    placement = Placement(range(num_ranks))
    if not warm.wanted() or not warm.free.acquire(blocking=False):
        yield Node(placement, run_dir)
        return
    try:
        yield warm.WarmNode(placement, run_dir, PRELOADED.get(engine, ()))
    finally:
        warm.free.release()


def failure_of(error: RunFailed, output: RankOutput, run_dir: Path, num_ranks: int) -> BaseException:
    """Print what the ranks have left to say; returns the failure in the words of the notebook."""
    failure = error.failure
    kind, rank = failure["kind"], failure["rank"]
    if kind == "interrupted":
        return KeyboardInterrupt()
    if kind not in ("hung", "flooded"):  # a rank that hangs has written its stacks to the log
        output.finish()
        output.tell_errors(list(reports(run_dir, num_ranks)), rank if kind == "raised" else None)
    if kind == "launcher" and not output.quiet:
        print(failure["traceback"], flush=True)
    message = how_it_ended(run_dir, rank) if kind == "killed" else ""
    message = message or failure["message"].replace("(TIMEOUT)", "(timeout=)").replace("TIMEOUT", "timeout=")
    trace = output.with_cell_names(failure["traceback"])
    message = output.with_cell_names(message) + place(trace, kind)
    failed = RunFailed(message)
    failed.failure = failure | {"message": message, "traceback": trace}
    return failed


def reports(run_dir: Path, num_ranks: int) -> Iterator[dict]:
    """What each rank that raised has left."""
    for rank in range(num_ranks):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            report = json.loads(error_path(run_dir, rank).read_text())
            if report["traceback"]:  # not one that was told to end
                yield report


def how_it_ended(run_dir: Path, rank: int) -> str:
    """In words, for a rank that is gone without having said why. Empty where our starter has not seen it end."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        code = int((run_dir / f"ended{rank}").read_text())
        if code >= 0:
            return f"rank {rank} ended with exit code {code} before the function returned"
        name = signal.Signals(-code).name
        return f"rank {rank} was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return ""


def place(trace: str, kind: str) -> str:
    """Where in the notebook a rank raised: the innermost of its cells' lines.

    >>> place('  File "cell [3]", line 2, in f\\n    g()\\n  File "/a/b.py", line 7, in g\\n', "raised")
    ' (cell [3], line 2, in f)'
    """
    found = re.findall(r'File "(cell \[\d+\])", line (\d+), in (\S+)', trace) if kind == "raised" else []
    return f" ({found[-1][0]}, line {found[-1][1]}, in {found[-1][2]})" if found else ""


def check(num_ranks: int, engine: str, timeout: float) -> None:
    """Raise UserError for a call that cannot work."""
    if engine not in START:
        raise UserError(f"unknown engine={engine!r}: choose one of {', '.join(START)}")
    if not isinstance(num_ranks, int) or not 1 <= num_ranks <= 64:
        raise UserError(f"num_ranks={num_ranks!r}: give a whole number from 1 to 64")
    if not timeout > 0:
        raise UserError(f"timeout={timeout!r}: give a number of seconds above 0")


def packed(call: tuple) -> bytes:
    """A call as bytes: functions of a notebook go by value, with the globals that they use."""
    import cloudpickle

    try:
        return cloudpickle.dumps(call)
    except Exception as error:
        raise UserError(f"the function cannot be sent to other processes: {error}") from None


def start_ranks(run_dir: Path, num_ranks: int, timeout: float, forked: bool) -> tuple[list[str], dict[str, str]]:
    """By our own starter; the ranks meet at a port of this machine. forked: they need no command."""
    command = [] if forked else [sys.executable, "-m", "bench.course.start", str(run_dir), str(num_ranks)]
    return command, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}


def start_horovod(run_dir: Path, num_ranks: int, timeout: float, forked: bool) -> tuple[list[str], dict[str, str]]:
    """By horovodrun. forked: it starts a stand-in for each rank, which hands it its variables."""
    program = ["-S", "-E", stand_in.__file__] if forked else ["-m", RANK_PROGRAM]
    command = horovodrun.start(num_ranks, [*program, str(run_dir)])
    return command, {horovodrun.GLOO_TIMEOUT: str(int(timeout + STARTING_S))}


START = {"torch": start_ranks, "bare": start_ranks, "horovod": start_horovod}
PRELOADED = {"horovod": ("horovod.torch",)}


def common_variables(num_ranks: int) -> dict[str, str]:
    """What every rank gets: its share of the threads, and where this code is."""
    return {
        **thread_variables(max(1, usable_cores() // num_ranks)),
        "PYTHONUNBUFFERED": "1",
        steady.STARTED_AT: str(steady.now()),
        **steady.variables(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }


def result_of(run_dir: Path, rank: int):
    """What the function returned on a rank. Raises UserError when it cannot be read here."""
    try:
        return pickle.loads((run_dir / f"result{rank}").read_bytes())
    except FileNotFoundError:
        message = f"rank {rank} ended before the function returned"
        failed = RunFailed(message)
        failed.failure = {"rank": rank, "kind": "killed", "message": message, "traceback": ""}
        raise failed from None
    except Exception as error:
        raise UserError(f"what the function returned on rank {rank} cannot be read here: {error}") from None


def cell_files() -> dict[str, str]:
    """The files that stand for a notebook's cells in tracebacks: name -> "cell [5]". Empty outside of IPython, and in a
    version that keeps them elsewhere: then a traceback names the file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {name: f"cell [{count}]" for name, count in names.items()}


def sources(files: dict[str, str]) -> dict[str, list[str]]:
    """The text of the cells, so that a rank's traceback can show the line that raised."""
    import linecache

    return {name: linecache.getlines(name) for name in files if re.search(r"\.py$", name)}
