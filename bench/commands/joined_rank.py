"""A process that somebody else's launcher has started, as a rank: it watches itself, and says how it ends."""

import dataclasses
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from bench.analysis import tables
from bench.commands.run_output import finish
from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.errors import BenchError, UserError, printable
from bench.launch import joining, launcher, supervise
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.launch.progress_bar import LiveProgress
from bench.launch.supervise import MOST_S
from bench.measure import node
from bench.measure.environment import collect_machine
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter
from bench.process.tree import GRACE_S
from bench.record.describe import epoch_line
from bench.storage import stage

LOOK_S = 1.0  # between two looks at what the other ranks have said
LOG_BYTES = 2**20  # of the end of a log that goes to another machine
QUIET_S = 3.0  # in which those say how they end that can
HURRY_S = 0.5  # the same under mpirun, which kills the processes a second after it has told them to end


class Rank(Guard):
    """This process as a rank. What it prints goes to its log; rank 0 speaks to the user on the streams that it had.

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

    def begin(self) -> None:
        """Write a heartbeat, and watch it."""
        self.status = StatusWriter(self.run_dir, self.rank)
        threading.Thread(target=self.look, name="joined", daemon=True).start()

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
        """Show how it goes on; ``watch`` again, or None where nobody reads it any more."""
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
        """On rank 0: what shows how the run goes on; None on the others."""
        if self.rank:
            return None
        stream = os.fdopen(os.dup(self.streams[0]), "w")
        console, workload = tables.terminal(stream), workload_of(self.config)
        self.live = LiveProgress(
            self.config, console, self.config.mode, lambda row: epoch_line(row, workload), captures=False
        )  # what a rank prints goes to its log
        return self.live.__enter__()

    # --- how it ends --------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        """What this rank printed."""
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
        """From here on what is printed goes to the user."""
        if self.live:
            self.live.__exit__()
        for number, stream in enumerate(self.streams, start=1):
            os.dup2(stream, number)

    def end_of_another(self, phase: str, code: int) -> int:
        """A rank but the first: its log goes to rank 0, its other results to COPY_TO or stay, and are named."""
        if phase == "done":
            left = {"log": None if self.shared else tail(self.log, LOG_BYTES)}
            said = "" if self.shared else self.bring_back()
            self.meeting.tell("done", left)
        else:
            said = "" if self.shared else self.bring_back()
            unheard = self.failed is None or "unheard" in self.failed or not heard(self.meeting)
            said += f"bench: rank {self.rank}: {printable(self.failed['message'])}\n" if self.failed and unheard else ""
        if said:
            self.speak()
            sys.stderr.write(said)
        return code

    def bring_back(self) -> str:
        """What this rank has left in a folder of its own: copied to COPY_TO, or kept and named, in a line; the folder
        is removed where it holds nothing but the log."""
        self.log.unlink(missing_ok=True)  # rank 0 has it
        launcher.tidy(self.run_dir, [])
        if not any(self.run_dir.rglob("*")):
            shutil.rmtree(self.run_dir.parent, ignore_errors=True)
            return ""
        if self.config.copy_to:
            try:
                stage.copy_back(self.run_dir, self.config.copy_to, self.config.timeout)
                shutil.rmtree(self.run_dir.parent, ignore_errors=True)
                return ""
            except (BenchError, OSError) as error:
                return (
                    f"bench: not copied: {printable(str(error))}; the files of rank {self.rank} are in {self.run_dir}\n"
                )
        return f"the files of rank {self.rank} are on {node.name()} in {self.run_dir}\n"

    def end_of_rank0(self, phase: str, code: int) -> int:
        """Rank 0: the others' logs, the record of a run that failed, and what the user reads."""
        if phase == "done":
            others = list(range(1, self.seat.world_size))
            for rank, left in zip(others, self.meeting.all("done", others, self.config.timeout), strict=True):
                self.keep_log(rank, left["log"])
            self.tidy()
            self.speak()
            finish(tables.terminal(), self.config, self.run_dir / "record.json", [])
            return 0
        done = (self.run_dir / "record.json").exists()
        hurried = self.machine is not None and self.failed is not None and self.failed["kind"] == "terminated"
        if hurried and not done:
            self.leave_record(self.ended_by_launcher())  # should there be no time to find out more
        error = self.cause(HURRY_S if hurried else QUIET_S)
        self.tidy()
        self.speak()
        if isinstance(error, UserError) and not error.failure:
            shutil.rmtree(self.run_dir, ignore_errors=True)  # nothing had begun
        elif not done:
            self.leave_record(error)
        print(f"bench: {printable(str(error))}", file=sys.stderr, flush=True)
        self.meeting.tell("said", True)
        time.sleep(LOOK_S)  # the store may be in this process: let the others hear it
        return error.exit_code

    def leave_record(self, error: BenchError) -> None:
        """The record of a run that failed."""
        launcher.fail(self.run_dir, self.config, self.started, error.failure, machine=self.machine)

    def ended_by_launcher(self) -> BenchError:
        """That no rank has said why it ends."""
        words = f"{self.seat.launcher} has ended, and with it the run"
        return supervise.failed("launcher", None, words, self.run_dir, "", f"rank{self.rank}.log")

    def cause(self, limit_s: float) -> BenchError:
        """What the run failed of, when all have said how they end that can, within ``limit_s`` seconds."""
        reports, deadline = [], time.monotonic() + limit_s
        while True:
            try:
                reports = self.meeting.failures()
            except RuntimeError:  # whoever held it is gone
                deadline = 0.0
            if self.failed and self.failed not in reports:
                reports = [*reports, self.failed]
            if joining.settled(reports, self.seat.world_size) or time.monotonic() > deadline:
                break
            time.sleep(joining.TICK_S)
        for report in reports:
            self.keep_log(report["rank"], report.get("log"))
        if not reports:
            return self.ended_by_launcher()
        return joining.cause_of(reports, self.seat.world_size, self.config.timeout, self.run_dir)

    def keep_log(self, rank: int, text: str | None) -> None:
        """Write the log of a rank that does not see this folder."""
        if text is not None:
            (self.run_dir / f"rank{rank}.log").write_text(text)

    def tidy(self) -> None:
        """Remove what the run needed only while it went on."""
        launcher.tidy(self.run_dir, [])
        (self.run_dir / joining.SHARED).unlink(missing_ok=True)


def tail(path: Path, size: int) -> str:
    """The last bytes of a text file; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def heard(meeting: joining.Meeting) -> bool:
    """Whether rank 0 has said to the user how the run ended, within the time that it needs for it."""
    try:
        deadline = time.monotonic() + QUIET_S + GRACE_S
        while time.monotonic() < deadline:
            if meeting.told("said", [0]):
                return True
            time.sleep(joining.TICK_S)
    except RuntimeError:  # it is gone
        pass
    return False
