"""bench/launch: each engine's command is a pure function of the config; a request that cannot be met starts nothing."""

import dataclasses
import importlib.util
import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from bench.config.modes import MODES
from bench.config.options import RunConfig, resolve
from bench.errors import RunFailed, UserError
from bench.launch import launcher as launch_run
from bench.launch import supervise
from bench.launch.engines import horovodrun, in_process, spawn, torchrun
from bench.process.guard import LAUNCHER_PID, error_path
from bench.process.heartbeat import LAYOUT, PHASES, read_status, status_path
from tests.runs import ROOT

RUN_DIR = Path("/runs/one")
GONE = 2**22 + 1  # above Linux's largest process id: nobody has it


def config_of(**options) -> RunConfig:
    """A resolved config of two CPU workers."""
    return resolve(RunConfig(**{"mode": "ddp", "num_devices": 2} | options), "cpu", 4)


@pytest.fixture
def busy_port():
    """A port of this machine that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def no_horovod(monkeypatch):
    """A machine without Horovod."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "horovod" else find_spec(name, *a)
    )


@pytest.fixture
def some_horovod(monkeypatch):
    """A machine with Horovod, wherever these tests run."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: object())


# --- The commands ---------------------------------------------------------------------------------------------------


def test_every_mode_has_an_engine_for_each_of_its_launchers():
    from bench.config.modes import LAUNCHERS, MODES

    assert set(launch_run.ENGINES) == set(LAUNCHERS)
    assert {launcher for info in MODES.values() for launcher in info.launchers} == set(LAUNCHERS)


def test_in_process():
    argv, variables = in_process.command(config_of(mode="dp"), RUN_DIR)
    assert argv == [sys.executable, "-m", "bench.worker", "/runs/one"]
    assert variables == {"RANK": "0"}


def test_torchrun_finds_its_own_port_and_never_restarts():
    argv, variables = torchrun.command(config_of(num_devices=3), RUN_DIR)
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert argv[argv.index("--nproc-per-node") + 1] == "3"
    assert argv[argv.index("--max-restarts") + 1] == "0"
    assert argv[argv.index("--rdzv-endpoint") + 1] == "127.0.0.1:0"
    assert argv[-3:] == ["-m", "bench.worker", "/runs/one"]
    assert variables == {}


def test_torchrun_at_a_given_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv, _ = torchrun.command(config_of(dist_url=f"tcp://127.0.0.1:{port}"), RUN_DIR)
    assert argv[argv.index("--master-addr") + 1] == "127.0.0.1"
    assert argv[argv.index("--master-port") + 1] == str(port)
    assert "--rdzv-endpoint" not in argv


def test_spawn_meets_in_a_file_of_the_run_by_default(tmp_path):
    argv, variables = spawn.command(config_of(launcher="spawn"), tmp_path)
    assert argv == [sys.executable, "-m", "bench.launch.engines.spawn", str(tmp_path), "2"]
    assert variables == {"BENCH_INIT_METHOD": f"file://{tmp_path}/.rendezvous"}


def test_spawn_meets_in_an_absolute_file_when_the_folder_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results/x").mkdir(parents=True)
    _, variables = spawn.command(config_of(launcher="spawn"), Path("results/x"))
    assert variables["BENCH_INIT_METHOD"] == f"file://{tmp_path}/results/x/.rendezvous"


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:{port}", "file://{folder}/meet"])
def test_spawn_meets_where_it_is_told(url, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = url.format(port=free.getsockname()[1], folder=tmp_path)
    _, variables = spawn.command(config_of(launcher="spawn", dist_url=url), RUN_DIR)
    assert variables == {"BENCH_INIT_METHOD": url}


def test_horovodrun(some_horovod):
    argv, variables = horovodrun.command(config_of(mode="horovod", num_devices=3, timeout=60.0), RUN_DIR)
    assert argv[:3] == [sys.executable, "-m", "horovod.runner.launch"]
    assert argv[argv.index("-np") + 1] == "3" and argv[argv.index("-H") + 1] == "localhost:3"
    assert "--gloo" in argv
    assert argv[-4:] == [sys.executable, "-m", "bench.worker", "/runs/one"]
    assert "HOROVOD_CYCLE_TIME" not in variables
    assert float(variables["HOROVOD_GLOO_TIMEOUT_SECONDS"]) >= 60  # TIMEOUT decides, not Horovod's own 30 s


def test_options_become_horovods_variables(some_horovod):
    config = config_of(mode="horovod", fusion_mb=1.5, cycle_time_ms=5.0, autotune=True)
    _, variables = horovodrun.command(config, RUN_DIR)
    assert variables["HOROVOD_FUSION_THRESHOLD"] == str(3 * 2**19)
    assert (variables["HOROVOD_CYCLE_TIME"], variables["HOROVOD_AUTOTUNE"]) == ("5.0", "1")


def test_tuned_sets_horovods_cycle(some_horovod):
    tuned = MODES["horovod"].tuned["cycle_time_ms"]
    assert tuned > 1  # Horovod's own
    _, variables = horovodrun.command(config_of(mode="horovod", tuned=True), RUN_DIR)
    assert float(variables["HOROVOD_CYCLE_TIME"]) == tuned


def test_what_the_user_has_set_stays_where_no_option_says_otherwise(some_horovod, monkeypatch):
    """The record shows options and variables: an option that something else overrides would be a false record."""
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "99")
    _, variables = horovodrun.command(config_of(mode="horovod"), RUN_DIR)
    assert "HOROVOD_CYCLE_TIME" not in variables and variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "99"
    _, variables = horovodrun.command(config_of(mode="horovod", cycle_time_ms=3.0), RUN_DIR)
    assert variables["HOROVOD_CYCLE_TIME"] == "3.0"


@pytest.mark.parametrize(("threads", "each"), [(1, "1"), (2, "1"), (4, "2"), (5, "2")])
def test_threads_are_shared_out_over_processes(threads, each):
    variables = launch_run.common_variables(config_of(threads=threads), started=1.0)
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == each
    assert launch_run.common_variables(config_of(mode="dp", threads=threads), 1.0)["OMP_NUM_THREADS"] == str(threads)


def test_the_workers_find_bench_and_their_launcher(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    variables = launch_run.common_variables(config_of(), started=1.5)
    assert variables["PYTHONPATH"] == f"{ROOT}{os.pathsep}/mine"
    assert variables[LAUNCHER_PID] == str(os.getpid())
    assert variables["BENCH_STARTED_AT"] == "1.5"


# --- What cannot be started -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "launcher"), [(torchrun, "torchrun"), (spawn, "spawn")])
def test_a_busy_port_is_refused(engine, launcher, busy_port):
    config = config_of(launcher=launcher, dist_url=f"tcp://127.0.0.1:{busy_port}")
    with pytest.raises(UserError, match=f"DIST_URL=tcp://127.0.0.1:{busy_port}.*Address already in use"):
        engine.command(config, RUN_DIR)


@pytest.mark.parametrize("address", ["203.0.113.1:29500", "no-such-host.invalid:29500", "a..b:29500"])
def test_an_address_that_is_not_this_machines_is_refused(address):
    with pytest.raises(UserError, match=r"DIST_URL=tcp://"):
        torchrun.command(config_of(dist_url=f"tcp://{address}"), RUN_DIR)


def test_a_file_of_another_run_is_refused(tmp_path):
    """The addresses in it would be taken for those of this run's ranks."""
    (tmp_path / "meet").write_text("addresses")
    with pytest.raises(UserError, match=r"DIST_URL=file://.*/meet.*"):
        spawn.command(config_of(launcher="spawn", dist_url=f"file://{tmp_path}/meet"), tmp_path)
    assert (tmp_path / "meet").read_text() == "addresses"


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path):
    """All ranks would wait for it until TIMEOUT."""
    with pytest.raises(UserError, match=r"DIST_URL=file://.*/nowhere"):
        spawn.command(config_of(launcher="spawn", dist_url=f"file://{tmp_path}/nowhere/meet"), tmp_path)


def test_horovod_missing_is_refused_with_the_remedy(no_horovod):
    with pytest.raises(UserError, match=r"MODE=horovod.*bench install-horovod"):
        horovodrun.command(config_of(mode="horovod"), RUN_DIR)


def test_what_could_not_start_leaves_no_folder(no_horovod, tmp_path):
    with pytest.raises(UserError):
        launch_run.launch(config_of(mode="horovod", out=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["file/below", "/proc/nowhere"])
def test_a_folder_that_cannot_be_made_is_refused(where, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"OUT=.*cannot be written to"):
        launch_run.launch(config_of(out=str(tmp_path / where)))


def test_runs_of_the_same_second_do_not_meet(tmp_path):
    folders = {launch_run.make_run_dir(config_of(out=str(tmp_path))) for _ in range(20)}
    assert len(folders) == 20


# --- What a run leaves when it breaks -------------------------------------------------------------------------------


def launch_with(monkeypatch, tmp_path, happening) -> Path:
    """``launch`` with ``happening(run_dir)`` in the place of processes; it must raise RunFailed. The run's folder."""
    monkeypatch.setattr(supervise, "run", lambda argv, environment, run_dir, *rest: happening(run_dir))
    monkeypatch.setenv("BENCH_STARTED_AT", "0")  # put back what launch changes
    with pytest.raises(RunFailed):
        launch_run.launch(config_of(out=str(tmp_path)))
    (folder,) = tmp_path.iterdir()
    return folder


def test_no_record_is_a_failure(monkeypatch, tmp_path):
    folder = launch_with(monkeypatch, tmp_path, lambda run_dir: None)
    failed = json.loads((folder / "record.json").read_text())
    assert failed["status"] == "failed" and failed["failure"]["kind"] == "launcher"


def test_a_rank_ended_while_it_wrote_the_record_leaves_no_half_of_it(monkeypatch, tmp_path):
    def happening(run_dir):
        (run_dir / "record.json.tmp").write_text('{"half')
        raise supervise.failed("killed", 0, "rank 0 was killed", run_dir)

    folder = launch_with(monkeypatch, tmp_path, happening)
    assert sorted(p.name for p in folder.iterdir()) == ["record.json"]


def leave_signs(run_dir, rank, phase, step=3):
    """The last life signs of a rank that is no more."""
    status_path(run_dir, rank).write_bytes(LAYOUT.pack(GONE, PHASES.index(phase), step, 10, 0.5, 1))


def leave_error(run_dir, rank, when, message="RuntimeError: Connection closed by peer"):
    """The report of a rank that raised."""
    report = {"rank": rank, "time": when, "user_error": False, "message": message, "traceback": f"trace of {rank}"}
    error_path(run_dir, rank).write_text(json.dumps(report))
    leave_signs(run_dir, rank, "raised")


def test_the_killed_rank_is_named_before_those_that_complain_about_it(tmp_path):
    leave_error(tmp_path, 0, when=1.0)
    leave_signs(tmp_path, 1, "forward")
    failure = supervise.diagnose(1, tmp_path, 2).failure
    assert (failure["rank"], failure["kind"]) == (1, "killed")


def test_the_killed_rank_is_named_even_when_the_engine_is_slow_to_end(tmp_path):
    """The others' complaints shorten the run's deadline; when it passes, the first cause is still the killed rank."""
    leave_error(tmp_path, 0, when=1.0)
    leave_signs(tmp_path, 1, "forward")
    failure = supervise.hung([read_status(tmp_path, r) for r in range(2)], tmp_path, 60).failure
    assert (failure["rank"], failure["kind"]) == (1, "killed")


def test_the_first_error_is_the_cause(tmp_path):
    leave_error(tmp_path, 0, when=2.0)
    leave_error(tmp_path, 1, when=1.0, message="ValueError: first")
    error = supervise.diagnose(1, tmp_path, 2)
    assert error.failure == {
        "rank": 1, "kind": "raised", "message": "rank 1 raised ValueError: first", "traceback": "trace of 1",
    }  # fmt: skip
    assert str(error).endswith(f"see {tmp_path / 'rank1.log'}") and error.exit_code == 1


def test_an_engine_that_fails_by_itself_is_quoted(tmp_path):
    (tmp_path / "launcher.log").write_text("some words\nno such option: --x\n")
    error = supervise.diagnose(2, tmp_path, 2)
    assert error.failure["kind"] == "launcher" and "code 2: no such option: --x" in error.failure["message"]


def test_an_engine_that_fails_silently_is_said_to(tmp_path):
    assert "it printed nothing" in supervise.diagnose(1, tmp_path, 2).failure["message"]


def test_a_config_crosses_the_boundary_unchanged(tmp_path, monkeypatch):
    """What the worker will read is the config that was launched."""
    seen = {}

    def happening(run_dir):
        seen.update(json.loads((run_dir / "config.json").read_text()))
        raise supervise.failed("launcher", None, "enough", run_dir)

    launch_with(monkeypatch, tmp_path, happening)
    assert seen == dataclasses.asdict(config_of(out=str(tmp_path)))


BEATING = """
import sys, time
from pathlib import Path
from bench.process.heartbeat import StatusWriter
status = StatusWriter(Path(sys.argv[1]), 0)
for _ in range(int(sys.argv[2])):
    status.phase("validating")
    time.sleep(0.5)
time.sleep(float(sys.argv[3]))
status.phase("done")
"""


def beating(tmp_path, beats: int, then_silent_s: float):
    """A rank that shows progress twice a second for a while, under a TIMEOUT of 3 s."""
    argv = [sys.executable, "-c", BEATING, str(tmp_path), str(beats), str(then_silent_s)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), LAUNCHER_PID: str(os.getpid())}
    supervise.run(argv, environment, tmp_path, num_ranks=1, timeout=3.0)


def test_a_run_that_goes_on_may_take_longer_than_timeout(tmp_path):
    started = time.monotonic()
    beating(tmp_path, beats=9, then_silent_s=0)
    assert time.monotonic() - started > 4


def test_a_run_that_stands_still_is_ended(tmp_path):
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"no progress for 3 s .*TIMEOUT"):
        beating(tmp_path, beats=2, then_silent_s=60)
    assert 3 < time.monotonic() - started < 30
