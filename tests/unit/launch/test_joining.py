"""Joining somebody else's launcher: seats that cannot be, options that contradict, and what a run failed of."""

import pytest

from bench.cli import COMMANDS
from bench.cli.actions import joined
from bench.config.options import RunConfig, to_dict
from bench.errors import RunFailed, UserError
from bench.launch import joining, machine
from bench.launch.launcher import resolve_here
from bench.launch.seat import LAUNCHERS, seat_of
from tests.runs import flags, refuses

TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # fmt: skip
HOROVODRUN = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2",
              "HOROVOD_CROSS_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
              "HOROVOD_GLOO_RENDEZVOUS_PORT": "29500"}  # fmt: skip
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}  # fmt: skip
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "12"}  # fmt: skip
EVERY = {"torchrun": TORCHRUN, "horovodrun": HOROVODRUN, "mpirun": MPIRUN, "srun": SRUN}


@pytest.mark.parametrize("name", EVERY)
def test_every_launcher_is_known_by_what_it_sets(name):
    """And refused by what is missing."""
    seat = seat_of(EVERY[name])
    assert (seat.launcher, seat.rank, seat.world_size) == (name, 1, 2) and seat.variables()["RANK"] == "1"
    for missing in LAUNCHERS[name].needed.values():
        with refuses(missing):
            seat_of({variable: value for variable, value in EVERY[name].items() if variable != missing})


@pytest.mark.parametrize("change", [{"RANK": "2"}, {"RANK": "-1"}, {"LOCAL_RANK": "2"}, {"LOCAL_WORLD_SIZE": "3"},
                                    {"RANK": "one"}, {"WORLD_SIZE": "many"}])  # fmt: skip
def test_a_seat_that_cannot_be_is_refused(change):
    with refuses("torchrun"):
        seat_of(TORCHRUN | change)


def test_the_innermost_launcher_counts():
    """srun starts torchrun's agents, whose ranks have the variables of both; a leftover hides nobody's seat."""
    assert seat_of(SRUN | TORCHRUN).launcher == "torchrun"
    assert seat_of({"WORLD_SIZE": "8"} | SRUN).launcher == "srun"
    assert seat_of(SRUN | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "4000"}).port == 4000
    assert seat_of({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("by", "options", "words"),
    [
        ("torchrun", {"gpus": 3}, "GPUS=3"),
        ("torchrun", {"gpus": "0,1"}, "GPUS=0,1"),
        ("srun", {"mode": "dp"}, "MODE=dp"),
        ("torchrun", {"mode": "horovod"}, "horovodrun or mpirun"),
        ("horovodrun", {"mode": "ddp"}, "torchrun or srun"),
        ("mpirun", {"mode": "horovod", "profile": 1}, "PROFILE=1"),
        ("horovodrun", {"mode": "horovod", "adasum": 1}, "ADASUM=1"),
        ("torchrun", {"launcher": "spawn"}, "LAUNCHER=spawn"),
        ("torchrun", {"dist_url": "tcp://127.0.0.1:1"}, "DIST_URL=tcp://127.0.0.1:1"),
        ("torchrun", {"hosts": "a:1,b:1"}, "HOSTS=a:1,b:1"),
    ],
)
def test_an_option_that_contradicts_the_launcher_is_one_line(by, options, words):
    with refuses(words):
        joined.read_options(COMMANDS["run"].parse(flags(**options)), seat_of(EVERY[by]))


def test_other_commands_say_what_to_do_instead(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with refuses("torchrun", "HOSTS", "`bench run`"):
        resolve_here(RunConfig())


def test_what_differs_between_two_ranks_is_named():
    one = {"asked": to_dict(RunConfig()), "device": "cpu", "Python": "3.11", "torch": "2.6", "code of bench": "a"}
    assert joining.differs(one, one) == ""
    assert "code of bench" in machine.differs(one | {"code of bench": "b"}, one, "ddp", "here")
    assert "2.7" in machine.differs(one | {"torch": "2.7"}, one, "ddp", "here")
    assert "DEVICE=cuda" in joining.differs(one, one | {"device": "cuda"})
    assert "SEED=3" in joining.differs(one, one | {"asked": to_dict(RunConfig(seed=3))})


def report(rank: int, kind: str = "raised", message: str = "ValueError: no", user_error: bool = False, **more) -> dict:
    """How a rank reports that it ended."""
    return joining.report_of(rank, kind, user_error, message, "Traceback" if kind == "raised" else "", **more)


def stands(rank: int, collective: bool) -> dict:
    """A rank that says where it hangs."""
    where = {"file": "a.py", "line": rank, "function": "f", "collective": collective}
    beat = [1, "backward" if collective else "waiting for data", 4, 9, float("nan"), 7, [0, 0.0, 0.0, 0.0, 0.0]]
    return report(rank, "hung", "no progress", where=where, beat=beat)


LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:3"


@pytest.mark.parametrize(
    ("reports", "kind", "rank"),
    [
        ([report(1)], "raised", 1),
        ([report(2, message=LOST), report(1)], "raised", 1),
        ([report(0, message=LOST), report(2, message=LOST)], "killed", 1),
        ([report(0, "terminated", "was ended by SIGTERM"), report(2, message=LOST)], "killed", 1),
        ([report(0, message=LOST), report(1, message=LOST), report(2, message=LOST)], "raised", 0),
        ([report(n, "terminated", "was ended by SIGINT") for n in range(3)], "interrupted", None),
        ([stands(0, True), stands(1, False), stands(2, True)], "hung", 1),
        ([stands(0, True), stands(2, True)], "hung", 1),  # it says nothing
    ],
)
def test_the_cause_is_who_raised_by_itself_or_is_silent(tmp_path, reports, kind, rank):
    error = joining.cause_of(reports, 3, 9.0, tmp_path)
    assert isinstance(error, RunFailed) and (error.failure["kind"], error.failure["rank"]) == (kind, rank)


def test_a_users_error_stays_one(tmp_path):
    error = joining.cause_of([report(1, message="no such model", user_error=True)], 2, 9.0, tmp_path)
    assert isinstance(error, UserError) and str(error) == "no such model" and error.failure is None
    error = joining.cause_of([report(1, message="a.jpg is bad", user_error=True, phase="forward")], 2, 9.0, tmp_path)
    assert isinstance(error, UserError) and error.failure["rank"] == 1  # it had begun: its record and its logs stay
