"""A rank that joins others beside the group: it watches itself, and says how it ends.

The worker is one where `bench` has started it over HOSTS. A process that somebody else's launcher has
started is such a rank, too, and speaks to the user besides (bench/commands/joined_rank.py).
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from bench.config.options import RunConfig, from_dict
from bench.errors import BenchError, UserError, printable
from bench.files import written_whole
from bench.launch import joining, supervise
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.launch.seat import LAUNCHERS, read
from bench.launch.supervise import MOST_S
from bench.measure import steady
from bench.measure.environment import collect_machine
from bench.process.guard import RANK_IN, Guard
from bench.process.heartbeat import StatusWriter

LOOK_S = 1.0  # between two looks at what the other ranks have said
LOG_BYTES = 2**20  # of the end of a log that goes to another machine
QUIET_S = 3.0  # in which those say how they end that can


class Rank(Guard):
    """This process as a rank. What it prints goes to its log. Its launcher, `bench`, shows how the run goes on.

    shared: whether it sees rank 0's folder. It ends the process, whatever happens, and only once.
    """

    ends = (signal.SIGTERM, signal.SIGINT)  # nobody above it takes Ctrl-C for it

    def __init__(self, run_dir: Path, meeting: joining.Meeting, config: RunConfig, shared: bool, started: float):
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

    # --- while it goes on ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Show how it goes on, and end this rank when another has failed, or when no rank gets on."""
        if self.rank == 0 and self.seat.launcher == "mpirun":
            self.machine = collect_machine()  # when the run is ended there is no time for it
        told, beats, moved, seen, watch = 0.0, None, time.monotonic(), time.monotonic(), self.progress()
        every = max(LOOK_S, min(10.0, self.config.timeout / 10))
        while not self.ended.wait(LOOK_S):
            try:
                watch = watch and self.show(watch)
                self.look_at_others()
                now = time.monotonic()
                moved, seen = moved + max(0.0, now - seen - MOST_S), now  # this process was stopped: no rank's fault
                if now - told >= every:
                    self.meeting.tell("beats", self.node.heartbeats()[0].beats)
                    told, before = now, beats
                    beats = self.meeting.told("beats", list(range(self.seat.world_size)))
                    moved = now if beats != before else moved
                if now - moved > self.config.timeout:
                    self.hangs(f"no progress for {self.config.timeout:g} s (TIMEOUT)")
            except RuntimeError as error:
                if not self.ended.is_set():
                    self.report(False, f"rank 0 or {self.seat.launcher} is gone: {error}".splitlines()[0], "")
                    self.leave("terminated", 1)

    def show(self, watch):
        try:
            watch(self.node.heartbeats(), self.node.epochs())
        except OSError:
            return None
        return watch

    def look_at_others(self) -> None:
        """Rank 0 ends when another has failed; any rank when another finds that all hang, to say where it stands."""
        if failures := self.meeting.failures():
            if any(report["kind"] == "hung" for report in failures):
                self.hangs("no progress")
            if self.rank == 0:
                with self.once:
                    self.leave("terminated", 1)

    def hangs(self, message: str) -> None:
        """Say where this rank stands, and end it."""
        with self.once:
            where, beat = self.node.places()[0], self.node.heartbeats()[0]
            beat = [*dataclasses.astuple(beat)[:-1], list(beat.window)]
            self.fail("hung", False, message, tail(self.log, 4096), where=where, beat=beat)
            self.leave("terminated", 1)

    def progress(self):
        """What is called with heartbeats and epochs while the run goes on; None where nobody is to see them."""
        return None

    # --- how it ends --------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        return self.run_dir / f"rank{self.rank}.log"

    def report(self, user_error: bool, message: str, trace: str) -> None:
        with self.once:
            if self.failed is None:
                self.fail("raised" if trace else "terminated", user_error, message, trace)

    def fail(self, kind: str, user_error: bool, message: str, trace: str, **more) -> None:
        """Tell the others why this rank ends."""
        log = {} if self.shared else {"log": tail(self.log, LOG_BYTES)}
        self.failed = joining.report_of(self.rank, kind, user_error, message, trace, self.phase, **log, **more)
        try:
            self.meeting.fail(self.failed)
        except RuntimeError:  # the meeting is gone: so is who would read it
            self.failed["unheard"] = True

    def leave(self, phase: str, code: int) -> None:
        """Say how it ended, do what is to be done then, and go."""
        self.once.acquire()  # for good: the thread that comes second waits for the end
        self.ended.set()
        self.status.phase(phase)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            end = self.end_of_rank0 if self.rank == 0 else self.end_of_another
            code = end(phase, code)
        except BaseException as error:
            self.speak()
            print(f"bench: rank {self.rank}: {printable(f'{type(error).__name__}: {error}')}", file=sys.stderr)
            code = code or 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def speak(self) -> None:
        """From here on what is printed goes to whoever has started this process."""
        for number, stream in enumerate(self.streams, start=1):
            os.dup2(stream, number)

    def end_of_another(self, phase: str, code: int) -> int:
        """A rank but the first. One that hangs stays until all have said where they stand: its end would end them."""
        if phase == "done":
            self.meeting.tell("done", None)
        elif self.failed and self.failed["kind"] == "hung":
            self.reports(QUIET_S)
        return code

    def end_of_rank0(self, phase: str, code: int) -> int:
        """Wait for the others, whose store may be in this process; or say what the run has failed of."""
        others = list(range(1, self.seat.world_size))
        if phase == "done":
            if others:
                self.meeting.all("done", others, self.config.timeout)
            return 0
        error = self.cause(QUIET_S)
        said = {"user_error": isinstance(error, UserError), "message": str(error), "failure": error.failure}
        with written_whole(supervise.verdict_path(self.run_dir)) as path:
            path.write_text(json.dumps(said | {"exit_code": error.exit_code}))
        return error.exit_code

    def ended_by_launcher(self) -> BenchError:
        """That no rank has said why it ends."""
        words = f"{self.seat.launcher} has ended, and with it the run"
        return supervise.failed("launcher", None, words, self.run_dir, "", f"rank{self.rank}.log")

    def reports(self, limit_s: float) -> list[dict]:
        """How ranks end, when all have said so that can, within ``limit_s`` seconds."""
        reports, deadline = [], time.monotonic() + limit_s
        while True:
            try:
                reports = self.meeting.failures()
            except RuntimeError:  # whoever held it is gone
                deadline = 0.0
            if self.failed and self.failed not in reports:
                reports = [*reports, self.failed]
            if joining.settled(reports, self.seat.world_size) or time.monotonic() > deadline:
                return reports
            time.sleep(joining.TICK_S)

    def cause(self, limit_s: float) -> BenchError:
        """What the run failed of, as far as it is known within ``limit_s`` seconds."""
        reports = self.reports(limit_s)
        for report in reports:
            self.keep_log(report["rank"], report.get("log"))
        if not reports:
            return self.ended_by_launcher()
        machines = [host.name for host in self.config.machines for _ in range(host.slots)]
        places = {rank: f" on {name}" for rank, name in enumerate(machines) if len(self.config.machines) > 1}
        return joining.cause_of(reports, self.seat.world_size, self.config.timeout, self.run_dir, places)

    def keep_log(self, rank: int, text: str | None) -> None:
        if text is not None:
            (self.run_dir / f"rank{rank}.log").write_text(text)


def tail(path: Path, size: int) -> str:
    """The last bytes of a text file; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def of_hosts(run_dir: Path) -> Rank:
    """This process as a rank that `bench` has started over HOSTS; it has met the others, or ends."""
    started, rank_in = steady.now(), os.environ[RANK_IN]
    name, launcher = next(each for each in LAUNCHERS.items() if each[1].needed["rank"] == rank_in)
    config = from_dict(json.loads((run_dir / "config.json").read_text()))
    seat = read(name, launcher, os.environ)
    try:
        return Rank(run_dir, joining.meet(seat, config.timeout), config, True, started)
    except BenchError as error:
        Guard(run_dir, seat.rank).report(False, str(error), "")
        sys.exit(error.exit_code)
