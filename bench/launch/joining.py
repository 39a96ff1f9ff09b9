"""How processes that somebody else's launcher has started become one run: what they tell each other beside the group.

They meet in a key-value store before any engine has started, at the place that their launcher names. There they make
sure that all were asked for the same and run the same code, learn where rank 0's folder is, and say why they end: so a
failure has a name although every rank watches itself alone. No clock of one machine is compared with another's.
"""

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
from pathlib import Path

from bench.config.command_line import in_words
from bench.config.options import FIELDS, RunConfig, from_dict, to_dict
from bench.config.resolve import resolve
from bench.errors import BenchError, ExitCode, RunFailed, UserError
from bench.files import SHARED
from bench.launch import machine, supervise
from bench.launch.devices import weakest_of
from bench.launch.launcher import make_run_dir
from bench.launch.seat import Seat
from bench.measure import node, waiting
from bench.process.heartbeat import PHASES, Heartbeat, Window

TICK_S = 0.1
ADDRESS = "BENCH_ADDRESS"  # set by who starts ranks over HOSTS: that of this machine
# What a rank says that lost another one: a consequence, and no cause.
LOST = re.compile(
    "Connection (closed|reset|refused|timed out)|Broken pipe|closed by peer|HorovodInternalError|has been shut down|"
    "DistNetworkError|DistStoreError|NCCL|recvValue failed|failed to connect|Socket Timeout"
)


class Meeting:
    """A key-value store in which every rank writes and reads JSON. seat: this process's."""

    def __init__(self, seat: Seat, store):
        self.seat, self.store = seat, store

    def tell(self, what: str, item: object) -> None:
        self.store.set(f"{what}/{self.seat.rank}", json.dumps(item))

    def told(self, what: str, ranks: list[int]) -> dict[int, object]:
        """What these ranks have said by now; those that have not are left out."""
        there = [rank for rank in ranks if self.store.check([f"{what}/{rank}"])]
        return {rank: json.loads(self.store.get(f"{what}/{rank}")) for rank in there}

    def all(self, what: str, ranks: list[int], limit_s: float) -> list:
        """What these ranks say, waited for. Raises UserError where one has not come within ``limit_s`` seconds, and
        what another raises where that fails in the meantime."""
        deadline = time.monotonic() + limit_s
        while not self.store.check([f"{what}/{rank}" for rank in ranks]):
            if failures := self.failures():
                raise as_error(failures[0])
            if time.monotonic() > deadline:
                missing = [rank for rank in ranks if rank not in self.told(what, ranks)]
                raise UserError(
                    f"{supervise.names(missing)} of {self.seat.world_size} did not come within {limit_s:g} s "
                    f"(TIMEOUT): look at what {self.seat.launcher} shows of them"
                )
            time.sleep(TICK_S)
        return list(self.told(what, ranks).values())

    def everyone(self, what: str, limit_s: float) -> list:
        return self.all(what, list(range(self.seat.world_size)), limit_s)

    def fail(self, report: dict) -> None:
        """Say why this rank ends: the first of all ranks' is the cause, whatever their clocks say."""
        number = self.store.add("failures", 1)
        self.store.set(f"failure/{number}", json.dumps(report))

    def failures(self) -> list[dict]:
        """What ranks have said that end, the first one first."""
        numbers = range(1, self.store.add("failures", 0) + 1)
        return [json.loads(self.store.get(key)) for n in numbers if self.store.check([key := f"failure/{n}"])]


def as_error(report: dict) -> BenchError:
    return (UserError if report["user_error"] else RunFailed)(report["message"])


# --- the place where they meet ---------------------------------------------------------------------------------------


def meet(seat: Seat, limit_s: float) -> Meeting:
    """Open the meeting. Raises UserError where rank 0 cannot be reached within ``limit_s`` seconds, or cannot listen.

    The ranks of torchrun and srun meet at MASTER_ADDR, those of horovodrun through its own server, those of mpirun
    through MPI. The process can be interrupted meanwhile.
    """
    os.environ.update(waiting.variables(os.environ) | seat.variables())  # OpenMP reads them when torch is imported
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=limit_s)
    ours = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler of Python's would wait for torch
    try:
        if seat.engine == "torchrun":
            own = seat.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun has it
            place, options = (
                (seat.address, seat.port),
                {"is_master": own, "multi_tenant": True},
            )  # the group's is the same
            store = dist.TCPStore(*place, timeout=limit, wait_for_workers=False, **options)
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
        raise UserError(
            f"the processes of {seat.launcher} cannot meet at {where}: {why}; is it rank 0's machine, can it be "
            "reached from here, and is the port free?"
        ) from None
    finally:
        signal.signal(signal.SIGINT, ours)
    again = os.environ.get(
        "TORCHELASTIC_RESTART_COUNT", "0"
    )  # torchrun's store outlives the ranks that it starts again
    return Meeting(seat, dist.PrefixStore(f"bench/{again}", store))


def by_horovodrun(seat: Seat, place: list | None, limit_s: float) -> list:
    """Where rank 0 listens, told through the server by which horovodrun's ranks meet. place: on rank 0, what it
    tells. Raises RuntimeError."""
    from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore

    server, deadline = (seat.address, seat.port, "bench", "meeting"), time.monotonic() + limit_s
    if place:
        put_data_into_kvstore(*server, place)
        return place
    while True:
        try:
            return read_data_from_kvstore(*server)
        except RuntimeError:  # not there yet
            if time.monotonic() > deadline:
                raise
        time.sleep(TICK_S)


def by_mpi(seat: Seat, place: list | None, limit_s: float) -> list:
    """The same told by a broadcast of Horovod's over MPI. Raises UserError without a Horovod that has it. MPI waits for
    the other ranks without a limit: past ours the process ends, and mpirun with it."""
    import horovod.torch as hvd

    if not hvd.mpi_built():
        raise UserError(
            "MODE=horovod under mpirun needs a Horovod that is built with MPI, and this one has Gloo alone: start it "
            "with horovodrun --gloo, or run `bench install-horovod --mpi`"
        )

    def over() -> None:
        print(f"bench: not all processes of mpirun came within {limit_s:g} s (TIMEOUT)", file=sys.stderr, flush=True)
        os._exit(ExitCode.REFUSED)

    timer = threading.Timer(limit_s + seat.rank, over)  # one rank after the other: the first one says it
    timer.daemon = True
    timer.start()
    try:
        hvd.init()
        return hvd.broadcast_object(place, root_rank=0, name="meeting")  # by default named by its type on each rank
    finally:
        timer.cancel()


# --- one config ------------------------------------------------------------------------------------------------------


def agree(meeting: Meeting, asked: RunConfig, given: dict) -> RunConfig:
    """The resolved config, the same on every rank: defaults come from all machines together. asked: as this process was
    asked. given: what its machine gives (``machine.device``). Raises UserError, the same one on every rank, where they
    differ."""
    mine = {"asked": to_dict(asked), **given, **machine.describe()}
    meeting.tell("asked", mine)
    seats = meeting.everyone("asked", asked.timeout)
    for rank, other in enumerate(seats):
        if difference := differs(seats[0], other):
            raise UserError(f"rank {rank} on {other['name']} {difference}")
        if difference := machine.differs(other, seats[0], asked.mode, "on rank 0's machine"):
            raise UserError(f"rank {rank} on {other['name']}: {difference}")
    config, gpus = from_dict(seats[0]["asked"]), weakest_of([other["weakest"] for other in seats])
    return dataclasses.replace(
        resolve(config, given["device"], machine.cores_of(seats), *gpus), launcher="auto", baselines=False
    )


def differs(first: dict, other: dict) -> str:
    """What of a rank is not as on rank 0, and what to do: the rest of a sentence; "" where nothing is."""
    for name, value in other["asked"].items():
        if value != (meant := first["asked"][name]):
            said = [in_words(FIELDS[name], each) if each is not None else "nothing" for each in (value, meant)]
            return f"was asked for {said[0]}, and rank 0 for {said[1]}: give every process the same options"
    if other["device"] != first["device"]:
        return f"found DEVICE={other['device']}, and rank 0 {first['device']}: give DEVICE=cpu, or hide the GPUs"
    return ""


def share_folder(meeting: Meeting, config: RunConfig) -> tuple[Path, bool]:
    """The run's folder as rank 0 has made it, and whether this process sees it; where it does not, a temporary one of
    the same name on its own machine. Raises UserError where rank 0 cannot make one."""
    if meeting.seat.rank == 0:
        run_dir = make_run_dir(config)
        mark = secrets.token_hex(8)
        (run_dir / SHARED).write_text(mark)
        (run_dir / "config.json").write_text(json.dumps(to_dict(config)))
        meeting.tell("folder", {"path": str(run_dir.resolve()), "mark": mark})
        return run_dir, True
    (told,) = meeting.all("folder", [0], config.timeout)
    path = Path(told["path"])
    try:
        if (path / SHARED).read_text() == told["mark"] and os.access(path, os.W_OK):
            return path, True
    except OSError:
        pass
    own = Path(tempfile.mkdtemp(prefix="bench-")) / path.name
    own.mkdir()
    return own, False


# --- how it failed ---------------------------------------------------------------------------------------------------


def report_of(rank: int, kind: str, user_error: bool, message: str, trace: str, phase: str = PHASES[0], **more) -> dict:
    """Why a rank ends, and in which phase. kind: raised, hung or terminated."""
    said = {"message": message, "traceback": trace, "phase": phase}
    return {"rank": rank, "kind": kind, "user_error": user_error, **said, **more}


def settled(reports: list[dict], world_size: int) -> bool:
    """Whether more reports would change nothing: one raised by itself, or all have said how they end."""
    return any(map(is_cause, reports)) or len({report["rank"] for report in reports}) == world_size


def is_cause(report: dict) -> bool:
    """Whether a rank raised, and did not only lose another one."""
    return report["kind"] == "raised" and (report["user_error"] or not LOST.search(report["message"]))


def cause_of(
    reports: list[dict], world_size: int, limit_s: float, run_dir: Path, place_of: dict[int, str] | None = None
) -> BenchError:
    """What a joined run failed of, from what its ranks have said, the first one first. place_of: what to say of the
    machine of a rank.

    A rank that raised by itself is the cause. Where all stand still, their places tell which one the others wait for.
    One that has said nothing, while the others lost it, was killed, or its machine is gone.
    """
    place_of = place_of or {}
    if found := next(filter(is_cause, reports), None):
        host = place_of.get(found["rank"], "")
        if found["user_error"]:
            error = UserError(f"rank {found['rank']}{host}: {found['message']}" if host else found["message"])
            error.failure = supervise.failure_of(found)
            return error
        message = f"rank {found['rank']}{host} raised {found['message']}"
        return supervise.failed("raised", found["rank"], message, run_dir, found["traceback"])
    spoken = {report["rank"]: report for report in reversed(reports)}
    silent = [rank for rank in range(world_size) if rank not in spoken]
    hung = all(report["kind"] == "hung" for report in spoken.values())
    if hung and not silent:
        beats = [beat_of(spoken[rank]["beat"]) for rank in range(world_size)]
        where = [spoken[rank]["where"] for rank in range(world_size)]
        rank, message = supervise.explain(beats, where, limit_s)
        message += f"; rank {rank} is{place_of[rank]}" if place_of.get(rank) else ""
        error = supervise.failed("hung", rank, message, run_dir, spoken[rank]["traceback"])
        error.failure["where"] = where
        return error
    if silent:
        lost = next(report for report in reports if report["kind"] != "terminated" or report is reports[-1])
        message = f"{supervise.names(silent)}{place_of.get(silent[0], '')} ended without a word: killed or stopped "
        message += "(SIGKILL, out of memory, SIGSTOP), or the machine is gone; "
        message += f"rank {lost['rank']}: {lost['message']}"
        return supervise.failed("hung" if hung else "killed", silent[0], message, run_dir, "")
    if any(report["kind"] == "terminated" for report in reports):
        return supervise.failed("interrupted", None, "interrupted", run_dir, "")
    first = reports[0]
    message = f"rank {first['rank']}{place_of.get(first['rank'], '')} raised {first['message']}"
    return supervise.failed("raised", first["rank"], message, run_dir, first["traceback"])


def beat_of(values: list) -> Heartbeat:
    return Heartbeat(*values[:-1], Window(*values[-1]))
