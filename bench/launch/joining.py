"""Combine processes that an external launcher started into one run: they meet in a key-value store before the process
group exists, agree on one config, get rank 0's folder, and report why they end. Clocks of different machines are never
compared."""

import dataclasses
import datetime
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.config.fields import in_words
from bench.config.options import FIELDS, RunConfig, from_dict, to_dict
from bench.config.resolve import resolve
from bench.errors import BenchError, ExitCode, RunFailed, UserError, printable
from bench.files import SHARED, atomic_write
from bench.launch import machine, stacks, supervise
from bench.launch.devices import weakest_over_machines
from bench.launch.launcher import make_run_dir
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.launch.seat import LAUNCHERS, Seat, read
from bench.measure import node, steady, waiting
from bench.measure.environment import collect_machine
from bench.process.guard import RANK_IN, Guard
from bench.process.heartbeat import PHASES, Heartbeat, StatusWriter, Window

TICK_S = 0.1
LOOK_S = 1.0  # between two reads of the other ranks' reports
LOG_BYTES = 2**20  # of the end of a log that is sent to another machine
QUIET_S = 3.0  # for all ranks to report how they end
HUNG_S = 15.0  # in a hang, when each first finds its place: a rank without a report by then counts as stopped
ADDRESS = "BENCH_ADDRESS"  # this machine's, set when ranks are started over HOSTS
# Messages of a rank that lost another one: a consequence, not a cause.
LOST = re.compile(
    "Connection (closed|reset|refused|timed out)|Broken pipe|closed by peer|HorovodInternalError|has been shut down|"
    "DistNetworkError|DistStoreError|NCCL|recvValue failed|failed to connect|Socket Timeout"
)


class RankStore:
    """A key-value store in which every rank writes and reads JSON."""

    def __init__(self, seat: Seat, store):
        self.seat, self.store = seat, store

    def write(self, what: str, item: object) -> None:
        self.store.set(f"{what}/{self.seat.rank}", json.dumps(item))

    def read_available(self, what: str, ranks: Sequence[int]) -> dict[int, object]:
        """These ranks' entries so far, by rank."""
        there = [rank for rank in ranks if self.store.check([f"{what}/{rank}"])]
        return {rank: json.loads(self.store.get(f"{what}/{rank}")) for rank in there}

    def read_all(self, what: str, ranks: Sequence[int], limit_s: float) -> list:
        """Wait for these ranks' entries. Raises UserError after ``limit_s`` seconds, or another rank's failure."""
        deadline = time.monotonic() + limit_s
        while ranks and not self.store.check([f"{what}/{rank}" for rank in ranks]):
            if failures := self.failures():
                raise (UserError if failures[0]["user_error"] else RunFailed)(failures[0]["message"])
            if time.monotonic() > deadline:
                missing = [rank for rank in ranks if rank not in self.read_available(what, ranks)]
                late = f"did not start within {limit_s:g} s (TIMEOUT): see their output in {self.seat.launcher}"
                raise UserError(f"{supervise.names(missing)} of {self.seat.world_size} {late}")
            time.sleep(TICK_S)
        return list(self.read_available(what, ranks).values())

    def fail(self, report: dict) -> None:
        """Report why this rank ends. The store numbers the reports, so the first one is known without clocks."""
        number = self.store.add("failures", 1)
        self.store.set(f"failure/{number}", json.dumps(report))

    def failures(self) -> list[dict]:
        numbers = range(1, self.store.add("failures", 0) + 1)
        return [json.loads(self.store.get(key)) for n in numbers if self.store.check([key := f"failure/{n}"])]


def open_store(seat: Seat, limit_s: float) -> RankStore:
    """Open the store: at MASTER_ADDR under torchrun and srun, through horovodrun's server, or through MPI. Raises
    UserError if rank 0 cannot be reached within ``limit_s`` seconds. Ctrl-C works meanwhile."""
    os.environ.update(waiting.variables(os.environ) | seat.variables())  # OpenMP reads them when torch is imported
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=limit_s)
    ours = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler of Python's would wait for torch
    try:
        if seat.engine == "torchrun":
            own = seat.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else it is torchrun's
            options = {"is_master": own, "multi_tenant": True}  # the process group uses the same store
            store = dist.TCPStore(seat.address, seat.port, timeout=limit, wait_for_workers=False, **options)
        else:
            store = place = None
            if seat.rank == 0:
                host = os.environ.get(ADDRESS) or os.environ.get("HOROVOD_HOSTNAME") or node.name()
                store = dist.TCPStore(host, 0, is_master=True, timeout=limit, wait_for_workers=False)
                place = [host, store.port]
            place = (by_mpi if seat.launcher == "mpirun" else by_horovodrun)(seat, place, limit_s)
            store = store or dist.TCPStore(*place, timeout=limit, wait_for_workers=False)
    except (RuntimeError, OSError) as error:  # torch's DistError is a RuntimeError
        where = f"{seat.address}:{seat.port}" if seat.address else "rank 0"
        why = str(error).splitlines()[0][:200]
        remedy = "check that it is rank 0's machine, that this machine reaches it, and that the port is free"
        raise UserError(f"the processes of {seat.launcher} cannot meet at {where}: {why}: {remedy}") from None
    finally:
        signal.signal(signal.SIGINT, ours)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives restarted ranks
    return RankStore(seat, dist.PrefixStore(f"bench/{restart}", store))


def by_horovodrun(seat: Seat, place: list | None, limit_s: float) -> list:
    from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore

    server, deadline = (seat.address, seat.port, "bench", "meeting"), time.monotonic() + limit_s
    if place:
        put_data_into_kvstore(*server, place)
        return place
    while True:
        try:
            return read_data_from_kvstore(*server)
        except RuntimeError:  # not written yet
            if time.monotonic() > deadline:
                raise
        time.sleep(TICK_S)


def by_mpi(seat: Seat, place: list | None, limit_s: float) -> list:
    """Rank 0's address, broadcast over MPI. MPI waits without a limit, so the process exits after ours."""
    import horovod.torch as hvd

    if not hvd.mpi_built():
        raise UserError("this Horovod has no MPI: use horovodrun --gloo, or run `bench install-horovod --mpi`")

    def over() -> None:
        print(f"bench: not all processes of mpirun started within {limit_s:g} s (TIMEOUT)", file=sys.stderr, flush=True)
        os._exit(ExitCode.REFUSED)

    timer = threading.Timer(limit_s + seat.rank, over)  # one rank after the other: the first one prints
    timer.daemon = True
    timer.start()
    try:
        hvd.init()
        return hvd.broadcast_object(place, root_rank=0, name="meeting")  # by default named by its type on each rank
    finally:
        timer.cancel()


def resolve_on_all_ranks(meeting: RankStore, asked: RunConfig, given: dict) -> RunConfig:
    """The resolved config, the same on every rank. given: this rank's resources (``machine.device``). Raises the same
    UserError on all ranks if their options, code or machines differ."""
    mine = {"asked": to_dict(asked), **given, **machine.describe()}
    meeting.write("asked", mine)
    seats = meeting.read_all("asked", range(meeting.seat.world_size), asked.timeout)
    for rank, other in enumerate(seats):
        if difference := differs(seats[0], other):
            raise UserError(f"rank {rank} on {other['name']} {difference}")
        if difference := machine.differs(other, seats[0], asked.mode, "on rank 0's machine"):
            raise UserError(f"rank {rank} on {other['name']}: {difference}")
    config, gpus = from_dict(seats[0]["asked"]), weakest_over_machines([other["weakest"] for other in seats])
    config = resolve(config, given["device"], machine.cores_of(seats), *gpus)
    return dataclasses.replace(config, launcher="auto", baselines=False)


def differs(first: dict, other: dict) -> str:
    """How a rank differs from rank 0, and what to do; "" if it does not."""
    for name, value in other["asked"].items():
        if value != (meant := first["asked"][name]):
            said = [in_words(FIELDS[name], each) if each is not None else "nothing" for each in (value, meant)]
            return f"has {said[0]}, but rank 0 has {said[1]}: give every process the same options"
    if other["device"] != first["device"]:
        return f"found DEVICE={other['device']}, but rank 0 {first['device']}: use DEVICE=cpu, or hide the GPUs"
    return ""


def share_folder(meeting: RankStore, config: RunConfig) -> tuple[Path, bool]:
    """Rank 0's run folder, and whether it is visible here; if not, a temporary folder of the same name."""
    if meeting.seat.rank == 0:
        run_dir = make_run_dir(config)
        mark = secrets.token_hex(8)
        (run_dir / SHARED).write_text(mark)
        (run_dir / "config.json").write_text(json.dumps(to_dict(config)))
        meeting.write("folder", {"path": str(run_dir.resolve()), "mark": mark})
        return run_dir, True
    (told,) = meeting.read_all("folder", [0], config.timeout)
    path = Path(told["path"])
    if machine.sees_folder(path, told["mark"]):
        return path, True
    own = Path(tempfile.mkdtemp(prefix="bench-")) / path.name
    own.mkdir()
    return own, False


# --- failures --------------------------------------------------------------------------------------------------------


def report_of(rank: int, kind: str, user_error: bool, message: str, trace: str, phase: str = PHASES[0], **more) -> dict:
    said = {"message": message, "traceback": trace, "phase": phase}
    return {"rank": rank, "kind": kind, "user_error": user_error, **said, **more}


def is_cause(report: dict) -> bool:
    return report["kind"] == "raised" and (report["user_error"] or not LOST.search(report["message"]))


def cause_of(
    reports: list[dict], world_size: int, limit_s: float, run_dir: Path, place_of: dict[int, str] | None = None
) -> BenchError:
    """Why a joined run failed, from its reports in order. place_of: " on HOST" by rank. A rank that raised its
    own error is the cause. If all hang, their places show which one to check first. A rank without a report that the
    others lost was killed."""
    place_of = place_of or {}
    if found := next(filter(is_cause, reports), None):
        return supervise.error_from_report(found, place_of.get(found["rank"], ""), run_dir)
    spoken = {report["rank"]: report for report in reversed(reports)}
    silent = [rank for rank in range(world_size) if rank not in spoken]
    hung = all(report["kind"] == "hung" for report in spoken.values())
    if hung and not silent:
        beats = [Heartbeat(*beat[:-1], Window(*beat[-1])) for beat in (spoken[n]["beat"] for n in range(world_size))]
        where = [spoken[rank]["where"] for rank in range(world_size)]
        rank, message = supervise.explain(beats, where, limit_s)
        message += f"; rank {rank} is{place_of[rank]}" if place_of.get(rank) else ""
        error = supervise.failed("hung", rank, message, run_dir, spoken[rank]["traceback"])
        error.failure["where"] = where
        return error
    if silent:
        lost = next(report for report in reports if report["kind"] != "terminated" or report is reports[-1])
        message = f"{supervise.names(silent)}{place_of.get(silent[0], '')} ended without a report: killed or stopped "
        message += f"(SIGKILL, out of memory, SIGSTOP), or the machine is gone; rank {lost['rank']}: {lost['message']}"
        return supervise.failed("hung" if hung else "killed", silent[0], message, run_dir, "")
    if any(report["kind"] == "terminated" for report in reports):
        return supervise.failed("interrupted", None, "interrupted", run_dir, "")
    return supervise.error_from_report(reports[0], place_of.get(reports[0]["rank"], ""), run_dir)


# --- a rank that watches itself ---------------------------------------------------------------------------------------


class Rank(Guard):
    """This process as a rank. shared: whether rank 0's folder is visible. It ends the process, only once."""

    ends = (signal.SIGTERM, signal.SIGINT)  # no parent handles Ctrl-C for it

    def __init__(self, run_dir: Path, meeting: RankStore, config: RunConfig, shared: bool, started: float):
        super().__init__(run_dir, meeting.seat.rank)
        self.meeting, self.config, self.shared, self.started = meeting, config, shared, started
        self.seat, self.failed, self.once = meeting.seat, None, threading.RLock()
        self.node = Node(Placement(range(self.rank, self.rank + 1)), run_dir)
        self.streams = [os.dup(number) for number in (1, 2)]
        self.ended = threading.Event()
        self.live = self.machine = None

    def __enter__(self) -> "Rank":
        super().__enter__()
        self.status = StatusWriter(self.run_dir, self.rank)
        threading.Thread(target=self.look, name="joined", daemon=True).start()
        return self

    def look(self) -> None:
        """Show progress, and end this rank if another has failed or no rank makes progress."""
        if self.rank == 0 and self.seat.launcher == "mpirun":
            self.machine = collect_machine()  # mpirun leaves no time for it at the end
        told, beats, moved, seen, watch = 0.0, None, time.monotonic(), time.monotonic(), self.progress()
        every = max(LOOK_S, min(10.0, self.config.timeout / 10))
        while not self.ended.wait(LOOK_S):
            try:
                try:
                    if watch:
                        watch(self.node.heartbeats(), self.node.epochs())
                except OSError:  # the terminal is gone
                    watch = None
                if failures := self.meeting.failures():
                    if any(report["kind"] == "hung" for report in failures):
                        self.hangs("no progress")
                    if self.rank == 0:
                        with self.once:
                            self.leave("terminated", 1)
                now = time.monotonic()
                moved += max(0.0, now - seen - supervise.MOST_S)  # this process was stopped: no rank's fault
                seen = now
                if now - told >= every:
                    self.meeting.write("beats", self.node.heartbeats()[0].beats)
                    told, before = now, beats
                    beats = self.meeting.read_available("beats", range(self.seat.world_size))
                    moved = now if beats != before else moved
                if now - moved > self.config.timeout:
                    self.hangs(f"no progress for {self.config.timeout:g} s (TIMEOUT)")
            except RuntimeError as error:
                if not self.ended.is_set():
                    self.report(False, f"rank 0 or {self.seat.launcher} is gone: {error}".splitlines()[0], "")
                    self.leave("terminated", 1)

    def hangs(self, message: str) -> None:
        """Report this rank's place, and end it."""
        with self.once:
            where, beat = self.node.places()[0], self.node.heartbeats()[0]
            beat = [*dataclasses.astuple(beat)[:-1], list(beat.window)]
            self.fail("hung", False, message, tail(self.log, 4096), where=where, beat=beat)
            self.leave("terminated", 1)

    def progress(self):
        """Called with heartbeats and epochs during the run; None without output."""
        return None

    @property
    def log(self) -> Path:
        return self.run_dir / f"rank{self.rank}.log"

    def report(self, user_error: bool, message: str, trace: str, **more) -> None:
        with self.once:
            if self.failed is None:
                self.fail("raised" if trace else "terminated", user_error, message, trace, **more)

    def fail(self, kind: str, user_error: bool, message: str, trace: str, **more) -> None:
        """Report to the others why this rank ends."""
        log = {} if self.shared else {"log": tail(self.log, LOG_BYTES)}
        self.failed = report_of(self.rank, kind, user_error, message, trace, self.phase, **log, **more)
        try:
            self.meeting.fail(self.failed)
        except RuntimeError:  # the store is gone, and so are its readers
            self.failed["unheard"] = True

    def leave(self, phase: str, code: int) -> None:
        self.once.acquire()  # never released: a second thread waits for the end
        self.ended.set()
        self.status.phase(phase)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            end = self.end_rank0 if self.rank == 0 else self.end_other_rank
            code = end(phase, code)
        except BaseException as error:
            self.restore_output()
            print(f"bench: rank {self.rank}: {printable(f'{type(error).__name__}: {error}')}", file=sys.stderr)
            code = code or 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def restore_output(self) -> None:
        """Send output to the original stdout and stderr again."""
        for number, stream in enumerate(self.streams, start=1):
            os.dup2(stream, number)

    def end_other_rank(self, phase: str, code: int) -> int:  # of ranks from 1 on
        if phase == "done":
            self.meeting.write("done", None)
        elif self.failed and self.failed["kind"] == "hung":
            self.reports(QUIET_S)  # its exit would end the others
        return code

    def end_rank0(self, phase: str, code: int) -> int:
        """Wait for the others, which may use the store in this process; or write why the run failed."""
        if phase == "done":
            self.meeting.read_all("done", range(1, self.seat.world_size), self.config.timeout)
            return 0
        error = self.cause(QUIET_S)
        said = {"user_error": isinstance(error, UserError), "message": str(error), "failure": error.failure}
        with atomic_write(supervise.verdict_path(self.run_dir)) as path:
            path.write_text(json.dumps(said | {"exit_code": error.exit_code}))
        return error.exit_code

    def ended_by_launcher(self) -> BenchError:
        words = f"{self.seat.launcher} has ended, which ended the run"
        return supervise.failed("launcher", None, words, self.run_dir, "", f"rank{self.rank}.log")

    def reports(self, limit_s: float) -> list[dict]:
        """All ranks' reports, after at most ``limit_s`` seconds, or ``HUNG_S`` if this rank hangs."""
        hung = self.failed and self.failed["kind"] == "hung"
        reports, deadline = [], time.monotonic() + (HUNG_S if hung else limit_s)
        while True:
            try:
                reports = self.meeting.failures()
            except RuntimeError:  # the store is gone
                deadline = 0.0
            if self.failed and self.failed not in reports:
                reports = [*reports, self.failed]
            all_reported = len({report["rank"] for report in reports}) == self.seat.world_size
            if any(map(is_cause, reports)) or all_reported or time.monotonic() > deadline:
                return reports
            time.sleep(TICK_S)

    def cause(self, limit_s: float) -> BenchError:
        """Why the run failed."""
        reports = self.reports(limit_s)
        for report in reports:
            self.keep_log(report["rank"], report.get("log"))
        if not reports:
            return self.ended_by_launcher()
        machines = [host.name for host in self.config.machines for _ in range(host.slots)]
        places = {rank: f" on {name}" for rank, name in enumerate(machines) if len(self.config.machines) > 1}
        return cause_of(reports, self.seat.world_size, self.config.timeout, self.run_dir, places)

    def keep_log(self, rank: int, text: str | None) -> None:
        if text is not None:
            (self.run_dir / f"rank{rank}.log").write_text(text)


def tail(path: Path, size: int) -> str:
    return stacks.text_from(path, max(0, stacks.size(path) - size))


def of_hosts(run_dir: Path) -> Rank:
    """This process as a rank that `bench` started over HOSTS, after meeting the others."""
    started, rank_in = steady.now(), os.environ[RANK_IN]
    name, launcher = next(each for each in LAUNCHERS.items() if each[1].needed["rank"] == rank_in)
    config = from_dict(json.loads((run_dir / "config.json").read_text()))
    seat = read(name, launcher, os.environ)
    try:
        return Rank(run_dir, open_store(seat, config.timeout), config, True, started)
    except BenchError as error:
        Guard(run_dir, seat.rank).report(False, str(error), "")
        sys.exit(error.exit_code)
