"""Run a command with a limit; when it does not end well, say which rank failed, where and why; leave nobody behind."""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path

from bench.errors import RunFailed, UserError
from bench.guard import LAUNCHER_PID, alive, error_path
from bench.progress import PHASES, LifeSigns, read_status

TICK_S = 0.2
GRACE_S = 5.0  # from SIGTERM to SIGKILL, and for a broken run to end by itself


def run(argv: list[str], environment: dict, run_dir: Path, num_ranks: int, timeout: float, watch=None) -> None:
    """Start a command, watch its ranks, and return when all have ended well.

    Raises UserError when a rank found the request impossible, RunFailed (with ``.failure``) when a rank raised, was
    killed or hung, when the launcher failed, or on Ctrl-C. Whatever happens, no process of the run is left.
    """
    with (run_dir / "launcher.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    failure = None
    try:
        with signals_as_interrupt():
            failure = wait(process, run_dir, num_ranks, timeout, watch)
    except KeyboardInterrupt:
        failure = failed("interrupted", None, "interrupted", run_dir)
    finally:
        end_all(process, run_dir, num_ranks)
    if failure is None and process.returncode != 0:
        failure = diagnose(process.returncode, run_dir, num_ranks)
    if failure is not None:
        raise failure


@contextlib.contextmanager
def signals_as_interrupt():
    """SIGTERM and SIGHUP end a run like Ctrl-C does: cleanly. Outside the main thread signals cannot be set."""

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = {}
    with contextlib.suppress(ValueError):
        for number in (signal.SIGTERM, signal.SIGHUP):
            previous[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait(process: subprocess.Popen, run_dir: Path, num_ranks: int, timeout: float, watch) -> RunFailed | None:
    """Wait for the command. Returns a failure when no rank has made progress for ``timeout`` seconds, or when one has
    raised and the others do not end; None when the command has ended by itself."""
    progress, deadline, broken = None, time.monotonic() + timeout, math.inf
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TICK_S)
            return None
        signs = [read_status(run_dir, rank) for rank in range(num_ranks)]
        if watch:
            watch(signs)
        beats = [sign and sign.beats for sign in signs]
        if beats != progress:
            progress, deadline = beats, time.monotonic() + timeout
        if time.monotonic() > min(deadline, broken):
            return hung(signs, run_dir, timeout)
        if any(error_path(run_dir, rank).exists() for rank in range(num_ranks)):
            broken = min(broken, time.monotonic() + GRACE_S)  # the engine should end the others now


def hung(signs: list[LifeSigns | None], run_dir: Path, timeout: float) -> RunFailed:
    """Nothing has moved for too long: name the rank that is furthest behind, with its stacks."""
    cause = killed(signs, run_dir) or first_error(run_dir, len(signs))
    if cause:
        return cause
    for sign in filter(None, signs):
        with contextlib.suppress(ProcessLookupError):
            os.kill(sign.pid, signal.SIGUSR1)  # Guard writes the stacks to the rank's log
    time.sleep(0.5)
    missing = [rank for rank, sign in enumerate(signs) if sign is None]
    if missing:
        message = f"{names(missing)} did not start within {timeout:g} s (TIMEOUT)"
        return failed("hung", missing[0], message, run_dir)
    positions = [(sign.step, PHASES.index(sign.phase)) for sign in signs]
    last = positions.index(min(positions))
    where = "; ".join(f"rank {rank}: step {s.step + 1} of {s.total_steps}, {s.phase}" for rank, s in enumerate(signs))
    if len(set(positions)) > 1:
        message = f"rank {last} hangs and the others wait for it ({where}); no progress for {timeout:g} s (TIMEOUT)"
    else:
        message = f"no progress for {timeout:g} s ({where}): give a larger TIMEOUT if one step takes so long"
    return failed("hung", last, message, run_dir)


def diagnose(code: int, run_dir: Path, num_ranks: int) -> Exception:
    """The command ended with an error: who was first? A killed rank says nothing, so it is looked for before the
    others' complaints about it."""
    signs = [read_status(run_dir, rank) for rank in range(num_ranks)]
    cause = killed(signs, run_dir) or first_error(run_dir, num_ranks)
    if cause:
        return cause
    lines = tail(run_dir / "launcher.log", 30).strip().splitlines() or ["it printed nothing"]
    return failed("launcher", None, f"the launcher ended with code {code}: {lines[-1]}", run_dir)


def killed(signs: list[LifeSigns | None], run_dir: Path) -> RunFailed | None:
    """The first rank that is gone without having said why."""
    for rank, sign in enumerate(signs):
        if sign and not alive(sign.pid) and sign.phase not in ("done", "raised", "terminated"):
            where = f"at step {sign.step + 1} of {sign.total_steps}, {sign.phase}"
            return failed(
                "killed", rank, f"rank {rank} was killed (SIGKILL, out of memory) or crashed {where}", run_dir
            )
    return None


def first_error(run_dir: Path, num_ranks: int) -> Exception | None:
    """The earliest exception that a rank left behind."""
    reports = []
    for rank in range(num_ranks):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            reports.append(json.loads(error_path(run_dir, rank).read_text()))
    if not reports:
        return None
    report = min(reports, key=lambda r: r["time"])
    if report["user_error"]:
        return UserError(report["message"])
    rank, message = report["rank"], f"rank {report['rank']} raised {report['message']}"
    return failed("raised", rank, message, run_dir, report["traceback"])


def failed(kind: str, rank: int | None, message: str, run_dir: Path, trace: str | None = None) -> RunFailed:
    """A RunFailed that carries what the failed record will say. The message is one line and names the log."""
    log = "launcher.log" if rank is None else f"rank{rank}.log"
    first_line = message.splitlines()[0]
    error = RunFailed(first_line if kind == "interrupted" else f"{first_line}; see {run_dir / log}")
    error.exit_code = 130 if kind == "interrupted" else 1
    text = tail(run_dir / log, 60) if trace is None else trace
    error.failure = {"rank": rank, "kind": kind, "message": first_line, "traceback": text}
    return error


def end_all(process: subprocess.Popen, run_dir: Path, num_ranks: int) -> None:
    """End the launcher, its descendants and every rank that is still there: SIGTERM, then SIGKILL."""
    import psutil

    processes = [psutil.Process(process.pid)] if process.poll() is None else []
    for parent in list(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += parent.children(recursive=True)
    for rank in range(num_ranks):
        sign = read_status(run_dir, rank)
        with contextlib.suppress(psutil.Error):
            if sign and alive(sign.pid) and is_ours(rank_process := psutil.Process(sign.pid)):
                processes.append(rank_process)
    for action in ("terminate", "kill"):
        for p in processes:
            with contextlib.suppress(psutil.Error):
                getattr(p, action)()
        processes = psutil.wait_procs(processes, GRACE_S)[1]
    process.wait()


def is_ours(process) -> bool:
    """Whether a process was started by this launcher: a process id alone may have been given to somebody else."""
    return process.environ().get(LAUNCHER_PID) == str(os.getpid())


def names(ranks: list[int]) -> str:
    """[1, 2] -> "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def tail(path: Path, lines: int) -> str:
    """The last lines of a text file; empty when there is none."""
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return ""
