"""A function of a notebook on N ranks: fresh processes, output marked by rank, results back, errors in the cell.

A notebook must not fork its kernel: a CUDA device cannot be used again in the copy, and the copy would inherit the
kernel's random numbers. So the function travels in a file, to processes that the project's launcher starts, watches
and ends; what it returns comes back in a file, too.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.course.output import RankOutput
from bench.errors import RunFailed, UserError
from bench.guard import LAUNCHER_PID
from bench.launch import horovodrun, supervise
from bench.launch.ports import free_port
from bench.measure.environment import usable_cores
from bench.record import PROJECT

RANK_PROGRAM = "bench.course.rank"


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
    "horovod", started by horovodrun, and ``hvd.init()`` has been called. timeout: seconds for the function.
    quiet: print nothing of what the ranks print.

    Raises UserError when the function, its arguments or its result cannot travel, or Horovod is missing; RunFailed when
    a rank raises, dies, or is not back in time. No process is left behind.
    """
    check(num_ranks, engine)
    run_dir = Path(tempfile.mkdtemp(prefix="ranks-"))
    files = cell_files()
    output = RankOutput(run_dir, num_ranks, quiet, files)
    try:
        (run_dir / "call").write_bytes(packed((function, arguments, engine, sources(files))))
        command, variables = START[engine](run_dir, num_ranks, timeout)
        environment = {**os.environ, **common_variables(num_ranks), **variables}
        supervise.run(command, environment, run_dir, num_ranks, timeout, output.show)
        output.show()
        return [result_of(run_dir, rank) for rank in range(num_ranks)]
    except RunFailed as error:
        if error.failure["kind"] == "raised":
            output.show()  # with the traceback of the rank
        message = error.failure["message"].replace("(TIMEOUT)", "(timeout=)")
        failed = RunFailed(output.in_words_of_the_notebook(message))
        failed.failure = error.failure
        raise failed from None
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def check(num_ranks: int, engine: str) -> None:
    """Raise UserError for a call that cannot work."""
    if engine not in START:
        raise UserError(f"unknown engine={engine!r}: choose one of {', '.join(START)}")
    if not isinstance(num_ranks, int) or not 1 <= num_ranks <= 64:
        raise UserError(f"num_ranks={num_ranks!r}: give a whole number from 1 to 64")


def packed(call: tuple) -> bytes:
    """A call as bytes: functions of a notebook go by value, with the globals that they use."""
    import cloudpickle

    try:
        return cloudpickle.dumps(call)
    except Exception as error:
        raise UserError(f"the function cannot be sent to other processes: {error}") from None


def start_ranks(run_dir: Path, num_ranks: int, timeout: float) -> tuple[list[str], dict[str, str]]:
    """By our own starter; the ranks meet at a port of this machine."""
    command = [sys.executable, "-m", "bench.course.start", str(run_dir), str(num_ranks)]
    return command, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}


def start_horovod(run_dir: Path, num_ranks: int, timeout: float) -> tuple[list[str], dict[str, str]]:
    """By horovodrun."""
    command = horovodrun.start(num_ranks, ["-m", RANK_PROGRAM, str(run_dir)])
    return command, {horovodrun.GLOO_TIMEOUT: str(int(timeout) + 60)}


START = {"torch": start_ranks, "bare": start_ranks, "horovod": start_horovod}


def common_variables(num_ranks: int) -> dict[str, str]:
    """What every rank gets: its share of the threads, and who to report to."""
    threads = str(max(1, usable_cores() // num_ranks))
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        LAUNCHER_PID: str(os.getpid()),
        "BENCH_STARTED_AT": str(time.time()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }


def result_of(run_dir: Path, rank: int):
    """What the function returned on a rank."""
    import pickle

    return pickle.loads((run_dir / f"result{rank}").read_bytes())


def cell_files() -> dict[str, str]:
    """The files that stand for a notebook's cells in tracebacks: name -> "cell [5]". Empty outside of IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {name: f"cell [{count}]" for name, count in names.items()}


def sources(files: dict[str, str]) -> dict[str, list[str]]:
    """The text of the cells, so that a rank's traceback can show the line that raised."""
    import linecache

    return {name: linecache.getlines(name) for name in files if re.search(r"\.py$", name)}
