"""A rank that an external launcher has started: rank 0 prints the output and writes the record."""

import os
import shutil
import sys
import time

from bench.analysis import tables
from bench.cli.actions.run_output import finish
from bench.config.workloads import workload_of
from bench.errors import BenchError, UserError, printable
from bench.launch import joining, launcher
from bench.launch.joining import LOG_BYTES, LOOK_S, QUIET_S, Rank, tail
from bench.launch.progress_bar import LiveProgress
from bench.measure import node
from bench.process.tree import GRACE_S
from bench.record.describe import epoch_line
from bench.storage import stage

HURRY_S = 0.5  # as QUIET_S, under mpirun: it kills the processes a second after it has asked them to end


class JoinedRank(Rank):
    """Rank 0 shows progress on the streams that this process had."""

    live = None

    def progress(self):
        """Rank 0's progress display; None on the others."""
        if self.rank:
            return None
        stream = os.fdopen(os.dup(self.streams[0]), "w")
        console, workload = tables.terminal(stream), workload_of(self.config)
        self.live = LiveProgress(
            self.config, console, self.config.mode, lambda row: epoch_line(row, workload), captures=False
        )  # a rank's output goes to its log
        return self.live.__enter__()

    def restore_output(self) -> None:
        if self.live:
            self.live.__exit__()
        super().restore_output()

    def end_other_rank(self, phase: str, code: int) -> int:
        """A rank other than 0: its log goes to rank 0; its other files go to COPY_TO, or stay and are named."""
        if phase == "done":
            left = {"log": None if self.shared else tail(self.log, LOG_BYTES)}
            said = "" if self.shared else self.return_files()
            self.meeting.write("done", left)
        else:
            said = "" if self.shared else self.return_files()
            unheard = self.failed is None or "unheard" in self.failed or not wait_for_rank0(self.meeting)
            said += f"bench: rank {self.rank}: {printable(self.failed['message'])}\n" if self.failed and unheard else ""
        if said:
            self.restore_output()
            sys.stderr.write(said)
        return code

    def return_files(self) -> str:
        """Copy this rank's own folder to COPY_TO, or keep it and name it in a line; remove it if it has only the
        log."""
        self.log.unlink(missing_ok=True)  # rank 0 has it
        launcher.clean_up(self.run_dir, [])
        if not any(self.run_dir.rglob("*")):
            shutil.rmtree(self.run_dir.parent, ignore_errors=True)
            return ""
        if self.config.copy_to:
            try:
                stage.copy_back(self.run_dir, self.config.copy_to, self.config.timeout)
                shutil.rmtree(self.run_dir.parent, ignore_errors=True)
                return ""
            except (BenchError, OSError) as error:
                why = printable(str(error))
                return f"bench: not copied: {why}; the files of rank {self.rank} are in {self.run_dir}\n"
        return f"the files of rank {self.rank} are on {node.name()} in {self.run_dir}\n"

    def end_rank0(self, phase: str, code: int) -> int:
        """Rank 0: collect the others' logs, write the record of a failed run, print the output."""
        if phase == "done":
            others = list(range(1, self.seat.world_size))
            for rank, left in zip(others, self.meeting.read_all("done", others, self.config.timeout), strict=True):
                self.keep_log(rank, left["log"])
            launcher.clean_up(self.run_dir, [])
            self.restore_output()
            finish(tables.terminal(), self.config, self.run_dir / "record.json", [])
            return 0
        done = (self.run_dir / "record.json").exists()
        interrupted = self.machine is not None and self.failed is not None and self.failed["kind"] == "terminated"
        if interrupted and not done:
            self.leave_record(self.ended_by_launcher())  # in case there is no time to find out more
        error = self.cause(HURRY_S if interrupted else QUIET_S)
        launcher.clean_up(self.run_dir, [])
        self.restore_output()
        if isinstance(error, UserError) and not error.failure:
            shutil.rmtree(self.run_dir, ignore_errors=True)  # nothing had begun
        elif not done:
            self.leave_record(error)
        print(f"bench: {printable(str(error))}", file=sys.stderr, flush=True)
        self.meeting.write("said", True)
        time.sleep(LOOK_S)  # the store may be in this process: let the others read it
        return error.exit_code

    def leave_record(self, error: BenchError) -> None:
        launcher.fail(self.run_dir, self.config, self.started, error.failure, machine=self.machine)


def wait_for_rank0(meeting: joining.RankStore) -> bool:
    """Whether rank 0 has printed, within the time that it needs, how the run ended."""
    try:
        deadline = time.monotonic() + QUIET_S + GRACE_S
        while time.monotonic() < deadline:
            if meeting.read_available("said", [0]):
                return True
            time.sleep(joining.TICK_S)
    except RuntimeError:  # it is gone
        pass
    return False
