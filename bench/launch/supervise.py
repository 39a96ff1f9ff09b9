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
from bench.launch import stacks
from bench.process.guard import LAUNCHER_PID, alive, error_path
from bench.process.heartbeat import PHASES, LifeSigns, read_status

TICK_S = 0.2
GRACE_S = 5.0  # from SIGTERM to SIGKILL, and for a broken run to end by itself
JOINING = PHASES[:2]  # what a rank says of itself before it has met the others


def run(
    argv: list[str], environment: dict, run_dir: Path, num_ranks: int, timeout: float, watch=None, starting: float = 0.0
) -> None:
    """Start a command, watch its ranks, and return when all have ended well.

    timeout: seconds without progress. starting: seconds until every rank has joined the group, where that may take
    longer.

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
            failure = wait(process, run_dir, num_ranks, timeout, watch, starting)
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


def wait(
    process: subprocess.Popen, run_dir: Path, num_ranks: int, timeout: float, watch, starting: float
) -> RunFailed | None:
    """Wait for the command. Returns a failure when no rank has made progress for ``timeout`` seconds, or when one has
    raised and the others do not end; None when the command has ended by itself."""
    progress, moved, broken = None, time.monotonic(), math.inf
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TICK_S)
            return None
        signs = [read_status(run_dir, rank) for rank in range(num_ranks)]
        if watch:
            watch(signs)
        beats = [sign and sign.beats for sign in signs]
        if beats != progress:
            progress, moved = beats, time.monotonic()
        joined = all(sign and sign.phase not in JOINING for sign in signs)
        limit = timeout if joined else max(timeout, starting)
        if time.monotonic() > min(moved + limit, broken):
            return hung(signs, run_dir, limit)
        if any(error_path(run_dir, rank).exists() for rank in range(num_ranks)):
            broken = min(broken, time.monotonic() + GRACE_S)  # the engine should end the others now


def hung(signs: list[LifeSigns | None], run_dir: Path, timeout: float) -> RunFailed:
    """Nothing has moved for too long: say where every rank stands, and name one to look at first, with its stacks."""
    cause = killed(signs, run_dir) or first_error(run_dir, len(signs))
    if cause:
        return cause
    where = stacks.collect([sign and sign.pid for sign in signs], run_dir)
    missing = [rank for rank, sign in enumerate(signs) if sign is None]
    if missing:
        rank, message = missing[0], f"{names(missing)} did not start within {timeout:g} s (TIMEOUT)"
    else:
        rank, message = explain(signs, where, timeout)
    error = failed("hung", rank, message, run_dir)
    error.failure["where"] = where
    return error


def explain(signs: list[LifeSigns], where: list[dict | None], timeout: float) -> tuple[int, str]:
    """The rank to look at first, and why nothing moves, as far as the ranks' places tell: one line.

    where: by rank, as ``stacks.collect`` gives it. A rank that is in no collective keeps those waiting that are in one.
    Of two that stand at the same step and phase, the one whose place is known is named.
    """
    positions = [(sign.step, PHASES.index(sign.phase)) for sign in signs]
    order = [(position, place is None) for position, place in zip(positions, where, strict=True)]
    in_collective = [rank for rank, place in enumerate(where) if place and place["collective"]]
    outside = [rank for rank, (sign, place) in enumerate(zip(signs, where, strict=True))
               if sign.phase != "done" and (place is None or place["collective"] is False)]  # fmt: skip
    first = min(outside or range(len(signs)), key=order.__getitem__)
    limit = f"no progress for {timeout:g} s (TIMEOUT)"
    stand = "; ".join(map(standing, range(len(signs)), signs, where))
    groups = together(where)
    if in_collective and not outside and len(groups) > 1:
        return first, f"{limit}: {', '.join(groups)}: not all ranks entered it"
    if 0 < len(outside) < len(signs):
        return first, f"rank {first} hangs and the others wait for it ({stand}); {limit}"
    if len(set(positions)) > 1:
        return first, f"rank {first} is furthest behind, and the others may wait for it ({stand}); {limit}"
    return first, f"no progress for {timeout:g} s ({stand}): give a larger TIMEOUT if one step takes so long"


def standing(rank: int, sign: LifeSigns, place: dict | None) -> str:
    """One rank's step, phase and place."""
    at = f", at {stacks.name(place)}" if place else ""
    step = f"step {sign.step + 1} of {sign.total_steps}, " if sign.total_steps else ""
    return f"rank {rank}: {step}{sign.phase}{at}"


def together(where: list[dict | None]) -> list[str]:
    """The ranks by their places, the lowest rank's first; None: a rank that is there no more.

    >>> at = lambda line, collective=True: {"file": "a.py", "line": line, "function": "f", "collective": collective}
    >>> together([at(3), at(5), at(5), at(7, None)])[:2]
    ['rank 0 in a collective at a.py:3 (f)', 'ranks 1, 2 in another at a.py:5 (f)']
    >>> together([at(7, None), None])
    ['rank 0 in a backward pass at a.py:7 (f)', 'rank 1 has ended']
    """
    groups = {}
    for rank, place in enumerate(where):
        groups.setdefault(place and (stacks.name(place), place["collective"]), []).append(rank)
    said, collective = [], "a collective"
    for group, ranks in groups.items():
        at, waits = group or ("", None)
        doing = f"in {collective if waits else 'a backward pass'} at {at}" if group else "has ended"
        said.append(f"{names(ranks)} {doing}")
        collective = "another" if waits else collective
    return said


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
            step = f"at step {sign.step + 1} of {sign.total_steps}, " if sign.total_steps else ""
            where = f"{step}{sign.phase}"
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
