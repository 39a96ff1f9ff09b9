"""Watch the nodes of a run within its time limit, end all their processes, and report which rank failed and why."""

import contextlib
import itertools
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.errors import ExitCode, RunFailed, UserError
from bench.launch import elastic, stacks
from bench.launch.elastic import Survival
from bench.launch.node import Node
from bench.measure import nvml
from bench.process.ending import signals_as_interrupt, uninterrupted
from bench.process.guard import error_path
from bench.process.heartbeat import PHASES, PREPARING, Heartbeat
from bench.process.tree import GRACE_S

TICK_S = 0.2
JUDGE_S = 60.0  # beyond TIMEOUT: time for joined ranks to detect a hang themselves
SAY_S = 15.0  # from the end of the first machine of joined ranks to the end of the others
MOST_S = 5.0  # between two ticks on a busy machine
LEAST_ROOM = 2**16  # bytes of disk that a report needs
# torch's messages: a failed allocation, and a DataLoader worker that died from it
NO_SHARED_MEMORY = re.compile("(unable to (allocate|open)|insufficient|out of) shared memory|write to file </torch")
JOINING = PHASES[:2]  # before a rank has joined the group
# Of a rank's log: of CUDA, torch and the kernel; after these Python's faulthandler, which knows only the signal.
LAST_WORDS = re.compile("CUDA error|[Ww]atchdog|terminate called|\\bXid\\b"), re.compile("Fatal Python error")
PROGRESS = re.compile("(step|epoch) [0-9]")  # a line of a log
OVER_PCIE = "between GPUs without NVLink peer to peer over PCIe may be broken (ACS, IOMMU): try NCCL_P2P_DISABLE=1"


def run(
    nodes: list[Node], start: Callable[[Node], None], run_dir: Path, timeout: float, watch=None,
    survival: Survival | None = None, starting: float = 0.0,
) -> None:  # fmt: skip
    """Start every node with ``start(node)``, watch the ranks, and return when all have ended well. timeout: seconds
    without progress. watch: called a few times a second with all heartbeats and the rows of the finished epochs.
    survival: with MIN_DEVICES. Raises UserError if a rank reported one, else RunFailed (with ``.failure``). No process
    of the run is left."""
    failure, started = None, []
    try:
        with signals_as_interrupt():
            for node in nodes:
                with uninterrupted():  # a started process that is not in the list would never be ended
                    start(node)
                    started.append(node)
            failure = wait(nodes, run_dir, timeout, watch, starting, survival)
    except KeyboardInterrupt:
        failure = failed("interrupted", None, "interrupted", run_dir)
    finally:
        with uninterrupted():
            for node in started:
                node.end()
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} was removed during the run: no record was written")
    codes = [code for node in started if (code := node.wait(0))]
    failure = failure or find_lost_machine(started, run_dir) or (codes and diagnose(codes[0], nodes, run_dir))
    if failure:
        raise failure


def wait(
    nodes: list[Node], run_dir: Path, timeout: float, watch, starting: float, survival: Survival | None = None
) -> Exception | None:
    """Wait for the nodes' commands. Returns a failure when the run hangs; None when all have ended, or one failed."""
    progress, moved, broken, seen = None, time.monotonic(), math.inf, time.monotonic()
    joins, late = nodes[0].placement.joins, math.inf
    again = survival is not None and not joins  # the launcher restarts ranks
    while True:
        codes = [node.wait(TICK_S / len(nodes)) for node in nodes]
        beats = heartbeats(nodes)
        asleep = max(0.0, time.monotonic() - seen - MOST_S)  # this process was stopped: no rank's fault
        moved, broken, seen = moved + asleep, broken + asleep, time.monotonic()
        if survival:
            survival.update(nodes, beats)
        if watch:
            watch(survival.known_alive(beats) or beats if survival else beats, nodes[0].epochs())
        if find_lost_machine(nodes, run_dir):
            return None
        if joins and (cause := verdict(nodes, run_dir)):
            return cause
        if None not in codes or (any(codes) and not joins) or seen > late:
            return None
        counts = [beat and beat.beats for beat in beats]
        if counts != progress:
            progress, moved = counts, time.monotonic()
        joined = all(beat and beat.phase not in JOINING for beat in beats)
        limit = timeout if joined else max(timeout, starting)
        if joins:  # joined ranks detect a hang themselves, and report it before they end
            limit += JUDGE_S
            late = min(late, seen + SAY_S) if any(codes) else late
        if time.monotonic() > min(moved + limit, broken):
            return describe_hang(nodes, run_dir, limit, survival)
        if again and elastic.user_error(run_dir, len(beats)):
            return first_error(run_dir, nodes)
        if not again and any(error_path(run_dir, rank).exists() for rank in range(len(beats))):
            broken = min(broken, time.monotonic() + GRACE_S)  # the launcher should end the other ranks


def heartbeats(nodes: list[Node]) -> list[Heartbeat | None]:
    return [beat for node in nodes for beat in node.heartbeats()]


def find_lost_machine(nodes: list[Node], run_dir: Path) -> RunFailed | None:
    """The failure when a machine no longer answers."""
    for node in nodes:
        if why := node.lost_reason():
            ranks = list(node.placement.ranks)
            return failed("launcher", ranks[0], f"lost {names(ranks)} on host {why}", run_dir)
    return None


def describe_hang(nodes: list[Node], run_dir: Path, timeout: float, survival: Survival | None = None) -> Exception:
    """No progress for too long: report every rank's place, and the rank to check first, with its stacks."""
    beats = heartbeats(nodes)
    if survival:
        beats = survival.with_lost_ranks_done(beats)
    elif cause := find_killed_rank(nodes, run_dir) or first_error(run_dir, nodes):
        return cause
    if words := without_shared_memory(run_dir, len(beats)):
        return failed("hung", None, words, run_dir)
    if all(beat and beat.phase == "done" for beat in beats):
        words = f"all ranks have finished, but the launcher did not exit within {timeout:g} s (TIMEOUT)"
        return failed("hung", None, words, run_dir)
    where = [place for node in nodes for place in node.places()]
    if silent := find_lost_machine(nodes, run_dir):
        return silent
    stopped = [rank for rank, is_so in enumerate(each for node in nodes for each in node.stopped()) if is_so]
    missing = [rank for rank, beat in enumerate(beats) if beat is None]
    if missing:
        rank, message = missing[0], f"{names(missing)} did not start within {timeout:g} s (TIMEOUT)"
    elif stopped:
        stand = "; ".join(map(describe_rank, range(len(beats)), beats, where))
        rank, message = stopped[0], f"{names(stopped)} stopped by a signal (SIGSTOP) and not continued ({stand})"
        message += f"; no progress for {timeout:g} s (TIMEOUT)"
    else:
        rank, message = explain(beats, where, timeout, over_pcie(nodes, run_dir))
    if host := place_of(nodes, rank):
        message += f"; rank {rank} is{host}"
    error = failed("hung", rank, message, run_dir)
    error.failure["where"] = where
    name_cut(error, nodes)
    return error


def without_shared_memory(run_dir: Path, num_ranks: int) -> str:
    """A rank's log message about shared memory: a DataLoader worker without it dies, and its rank waits forever."""
    for rank in range(num_ranks):
        for line in tail(run_dir / f"rank{rank}.log", 60).splitlines():
            if NO_SHARED_MEMORY.search(line):
                return (f"rank {rank}'s loader got no shared memory ({line.strip()[:200]}): enlarge /dev/shm (docker: "
                        "--shm-size=1g), or use fewer WORKERS")  # fmt: skip
    return ""


def over_pcie(nodes: list[Node], run_dir: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((run_dir / "config.json").read_text())
        links = nvml.topology() if config.get("device") == "cuda" and len(nodes) == 1 else None
        return bool(links and links["pairs"]) and not any(pair["nvlink"] for pair in links["pairs"])
    return False


def explain(beats: list[Heartbeat], where: list[dict | None], timeout: float, pcie: bool = False) -> tuple[int, str]:
    """The rank to check first, and the reason. where: the ranks' places from ``stacks.collect``. A rank outside a
    collective blocks those inside one. Of two at the same step and phase, the one with a known place."""
    positions = [(beat.step, PHASES.index(beat.phase)) for beat in beats]
    order = [(position, place is None) for position, place in zip(positions, where, strict=True)]
    in_collective = [rank for rank, place in enumerate(where) if place and place["collective"]]
    outside = [rank for rank, (beat, place) in enumerate(zip(beats, where, strict=True))
               if beat.phase != "done" and (place is None or place["collective"] is False)]  # fmt: skip
    first = min(outside or range(len(beats)), key=order.__getitem__)
    limit = f"no progress for {timeout:g} s (TIMEOUT)"
    stand = "; ".join(map(describe_rank, range(len(beats)), beats, where))
    groups = group_by_place(where)
    if in_collective and not outside and len(groups) > 1:
        return first, f"{limit}: {', '.join(groups)}: not all ranks entered it"
    if 0 < len(outside) < len(beats):
        return first, f"rank {first} hangs and the others wait for it ({stand}); {limit}"
    if len(set(positions)) > 1:
        return first, f"rank {first} is furthest behind, and the others are probably waiting for it ({stand}); {limit}"
    if pcie and len(beats) > 1 and not outside and positions[0][0] <= 1:
        return first, f"{limit}: all ranks wait for each other at the first step ({stand}): {OVER_PCIE}"
    return first, f"no progress for {timeout:g} s ({stand}): use a larger TIMEOUT if a step takes longer"


def describe_rank(rank: int, beat: Heartbeat, place: dict | None) -> str:
    at = f", at {stacks.name(place)}" if place else ""
    step = f"step {beat.step + 1} of {beat.total_steps}, " if beat.total_steps else ""
    return f"rank {rank}: {step}{beat.phase}{at}"


def group_by_place(where: list[dict | None]) -> list[str]:
    """Group the ranks by place. None: a rank that has ended.

    >>> at = lambda line, collective=True: {"file": "a.py", "line": line, "function": "f", "collective": collective}
    >>> group_by_place([at(3), at(5), at(5), at(7, None)])[:2]
    ['rank 0 in a collective at a.py:3 (f)', 'ranks 1, 2 in another at a.py:5 (f)']
    >>> group_by_place([at(7, None), None])
    ['rank 0 in a backward pass at a.py:7 (f)', 'rank 1 has ended']
    """
    groups = {}
    for rank, place in enumerate(where):
        key = place and (stacks.name(place), place["collective"], place.get("awaits", ""))
        groups.setdefault(key, []).append(rank)
    parts, collective = [], "a collective"
    for group, ranks in groups.items():
        at, waits, awaits = group or ("", None, "")
        doing = f"in {collective if waits else 'a backward pass'} at {at}" if group else "has ended"
        parts.append(f"{names(ranks)} {doing}" + (f", awaiting {awaits}" if awaits else ""))
        collective = "another" if waits else collective
    return parts


def diagnose(code: int, nodes: list[Node], run_dir: Path) -> Exception:
    """A command failed: find the first cause. A killed rank writes no report, so it comes first."""
    cause = find_killed_rank(nodes, run_dir) or first_error(run_dir, nodes)
    ended = next((node.placement for node in nodes if len(nodes) > 1 and node.wait(0) == code), nodes[0].placement)
    where = f" on {ended.host}" if ended.host else ""
    failure = getattr(cause, "failure", None) or {"traceback": "", "message": ""}
    was_ended = not failure["traceback"] and " was ended by " in failure["message"]  # only a signal ended the rank
    if code < 0 and (cause is None or was_ended):
        words = f"the launcher{where} was killed ({signal_name(-code)}), and its ranks were terminated"
        return failed("launcher", None, words, run_dir, log=ended.log)
    if cause:
        return cause
    if full := without_room(run_dir):
        return failed("launcher", None, full, run_dir, log=ended.log)
    lines = tail(run_dir / ended.log, 30).strip().splitlines() or ["it printed nothing"]
    return failed(
        "launcher", None, f"the launcher{where} ended with exit code {code}: {lines[-1]}", run_dir, log=ended.log
    )


def signal_name(number: int) -> str:
    return {each.value: each.name for each in signal.Signals}.get(number, f"signal {number}")


def without_room(run_dir: Path) -> str:
    """The message if the run's disk is full, so that no rank could write a report; else ""."""
    with contextlib.suppress(OSError):
        disk = os.statvfs(run_dir)
        if disk.f_bavail * disk.f_frsize < LEAST_ROOM or (disk.f_files and not disk.f_favail):
            return f"the disk of {run_dir.parent} is full: make room, or choose another folder as OUT"
    return ""


def find_killed_rank(nodes: list[Node], run_dir: Path) -> RunFailed | None:
    """The first rank that ended without a report."""
    gone = [(each, node) for node in nodes for each in node.crashed_ranks()]
    for rank, (beat, (was_killed, node)) in enumerate(zip(heartbeats(nodes), gone, strict=True)):
        if was_killed:
            step = f"at step {beat.step + 1} of {beat.total_steps}, " if beat.total_steps else ""
            how = "was killed (SIGKILL, out of memory) or crashed"
            if why := node.out_of_memory():  # as the kernel has counted
                how = f"was killed (signal 9): {why};"
            elif full := without_room(run_dir):
                how = f"ended ({full})"
            else:
                lines = tail(run_dir / f"rank{rank}.log", 200).splitlines()[::-1]
                lines = list(itertools.takewhile(lambda line: not PROGRESS.match(line), lines))  # newest first
                if words := next((line for kind in LAST_WORDS for line in lines if kind.search(line)), ""):
                    how = f"died ({words.strip()[:300]})"
            error = failed("killed", rank, f"rank {rank}{place_of(nodes, rank)} {how} {step}{beat.phase}", run_dir)
            error.failure |= {"out_of_memory": True} if why else {}
            return error
    return None


def place_of(nodes: list[Node], rank: int) -> str:
    return next((f" on {node.placement.host}" for node in nodes if rank in node.placement.ranks and len(nodes) > 1), "")


def verdict_path(run_dir: Path) -> Path:
    return run_dir / ".rank0.verdict.json"


def verdict(nodes: list[Node], run_dir: Path) -> Exception | None:
    """The failure that rank 0 of joined ranks has reported, if any."""
    try:
        said = json.loads(verdict_path(run_dir).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    failure = said["failure"]
    if failure and failure["kind"] == "killed" and (cause := find_killed_rank(nodes, run_dir)):
        return cause
    error = (UserError if said["user_error"] else RunFailed)(said["message"])
    error.failure, error.exit_code = failure, said["exit_code"]
    if failure and failure["kind"] == "hung":
        name_cut(error, nodes)
    return error


def name_cut(error: RunFailed, nodes: list[Node]) -> None:
    """Add to a hang's message which machines cannot reach each other."""
    if cut := next(filter(None, (node.unreachable() for node in nodes)), ""):
        words = f"no progress, and {cut}: check the network between them; "
        error.args, error.failure["message"] = (words + str(error),), words + error.failure["message"]


def first_error(run_dir: Path, nodes: list[Node]) -> Exception | None:
    reports = []
    for rank in range(len(heartbeats(nodes))):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            reports.append(json.loads(error_path(run_dir, rank).read_text()))
    if not reports:
        return None
    report = min(reports, key=lambda r: r["time"])
    return error_from_report(report, place_of(nodes, report["rank"]), run_dir)


def error_from_report(report: dict, host: str, run_dir: Path) -> UserError | RunFailed:
    """The error of a rank's report. host: "" or " on HOST". A UserError has a failure only if training had begun."""
    rank, message, trace = report["rank"], report["message"], report["traceback"]
    if not report["user_error"]:
        error = failed("raised", rank, f"rank {rank}{host} {'raised ' if trace else ''}{message}", run_dir, trace)
        error.failure |= {"out_of_memory": True} if report.get("out_of_memory") else {}
        return error
    error = UserError(f"rank {rank}{host}: {message}" if host else message)
    if report["phase"] not in PREPARING:
        error.failure = {"kind": "raised", "rank": rank, "message": message, "traceback": trace}
    return error


def failed(
    kind: str, rank: int | None, message: str, run_dir: Path, trace: str | None = None, log: str = "launcher.log"
) -> RunFailed:
    """A RunFailed with the failure for the record. The one-line message names the log: the rank's, if there is one."""
    log = log if rank is None else f"rank{rank}.log"
    first_line = message.splitlines()[0]
    error = RunFailed(first_line if kind == "interrupted" else f"{first_line}; see {run_dir / log}")
    error.exit_code = ExitCode.INTERRUPTED if kind == "interrupted" else ExitCode.FAILED
    text = tail(run_dir / log, 60) if trace is None else trace
    error.failure = {"rank": rank, "kind": kind, "message": first_line, "traceback": text}
    return error


def names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def tail(path: Path, lines: int) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return ""
