"""bench/launch: each engine's command is a pure function of the config; a request that cannot be met starts nothing."""

import importlib.util
import itertools
import json
import os
import secrets
import shutil
import sys
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import pytest

from bench.analysis import tables
from bench.config.modes import COMPARED, MODES
from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.sections import LAUNCHERS
from bench.errors import RunFailed, UserError
from bench.install import horovod_status
from bench.launch import command as launch_command
from bench.launch import devices, supervise
from bench.launch import launcher as launch_run
from bench.launch.engines import ENGINES, horovodrun
from bench.launch.node import Node, Placement
from bench.measure import nccl, steady
from bench.process.guard import error_path
from bench.process.heartbeat import LAYOUT, NO_WINDOW, PHASES, status_path
from bench.studies.programs import available
from tests.runs import refuses

pytestmark = pytest.mark.slow

GONE = 2**22 + 1  # above Linux's largest process id: nobody has it


def config_of(device: str = "cpu", **options) -> RunConfig:
    """A resolved config of two devices; on GPUs nothing is started."""
    return resolve(RunConfig(**{"mode": "ddp", "num_devices": 2} | options), device, 4)


def command(config: RunConfig, run_dir: Path, **place) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a config's ranks on one node. place: of a Placement; without, all ranks."""
    placement = Placement(**{"ranks": range(config.num_processes)} | place)
    return launch_command.command_of(config, run_dir, placement, 1.0)


@pytest.fixture
def horovod(monkeypatch):
    """``horovod(version, says)``: this version is installed; where its name does not tell what it was built with, it
    says ``says``, in another process."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: name == "horovod" or found(name, *_))
    horovod_status.query_horovod.cache_clear()

    def install(version: str, says: str = "") -> None:
        monkeypatch.setattr(horovod_status, "installed_version", lambda: version)
        monkeypatch.setattr(horovod_status, "ASK", says or horovod_status.ASK)

    install(NCCL)
    yield install
    horovod_status.query_horovod.cache_clear()


GLOO, NCCL = "0.28.1+torch2.14.1.cu130.gloo.avx", "0.28.1+torch2.14.1.cu130.nccl.avx"
MPI, UNKNOWN = "0.28.1+torch2.14.1.cu130.gloo.mpi.avx", "0.28.1"
OPEN_MPI = "mpirun (Open MPI) 4.1.4"


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    """``mpirun("mpirun (Open MPI) 4.1.4")``: an mpirun that says so is on PATH; with "" there is none."""

    def install(says: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        if says:
            (folder / "mpirun").write_text(f"#!/bin/sh\necho '{says}'\n")
            (folder / "mpirun").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


@pytest.fixture
def torchs_nccl(monkeypatch):
    """``torchs_nccl("(2, 30, 7)")``: what the torch here reports about its NCCL, in a separate process."""

    def say(version: str) -> None:
        monkeypatch.setattr(nccl, "ASK", f"import json; print(json.dumps({version}))")
        nccl.version.cache_clear()

    for name in nccl.OF_SHARED:
        monkeypatch.delenv(name, raising=False)
    yield say
    nccl.version.cache_clear()


def test_every_mode_has_an_engine_for_each_of_its_launchers():
    assert set(ENGINES) == set(LAUNCHERS) == {launcher for info in MODES.values() for launcher in info.launchers}


SECOND = {"ranks": range(2, 4), "number": 1, "count": 3, "main": "10.0.0.9", "port": 2950, "address": "10.0.0.10"}
HOROVOD, GPUS = {"mode": "horovod"}, {"device": "cuda"}
CYCLE, TRACE, LATE = "HOROVOD_CYCLE_TIME", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
# The options, what the user has set, and the words or variables that the ranks get; None: they do not get this one.
COMMANDS = {
    "torchrun": ({}, {}, {"--max-restarts": "0", "--numa-binding": None, LATE: None}),  # restarts would be timed
    # c10d would sort the nodes by the text of their addresses.
    "second of three": ({"num_devices": 6, "place": SECOND}, {}, {
        "--nnodes": "3", "--node-rank": "1", "--nproc-per-node": "2", "--master-addr": "10.0.0.9",
        "--master-port": "2950", "--local-addr": "10.0.0.10", "--rdzv-backend": None}),
    "near its GPU": (GPUS | {"numa_binding": True}, {}, {"--numa-binding": "node"}),
    # What explains a hang of NCCL's.
    "GPUs": (GPUS | {"torch": "2.14.1", "timeout": 700.0}, {}, {"TORCH_FR_BUFFER_SIZE": "2000", LATE: "1000"}),
    "an old torch": (GPUS | {"torch": "2.7.1"}, {TRACE: "7"}, {"TORCH_FR_BUFFER_SIZE": None, TRACE: "7"}),
    "threads are shared out": ({"threads": 5}, {"OMP_NUM_THREADS": "7"}, {"OMP_NUM_THREADS": "2"}),
    "but not over dp": ({"mode": "dp", "threads": 5}, {"OMP_NUM_THREADS": "7"}, {"MKL_NUM_THREADS": "5"}),
    "spawn": ({"launcher": "spawn"}, {}, {"BENCH_INIT_METHOD": "file://{run_dir}/.rendezvous"}),
    # TIMEOUT decides, not Horovod's own 30 s.
    "horovodrun": (HOROVOD | {"timeout": 60.0}, {}, {
        "-np": "2", "-H": "localhost:2", CYCLE: None, "HOROVOD_GLOO_TIMEOUT_SECONDS": "120"}),
    "Horovod's options": (HOROVOD | {"fusion_mb": 1.5, "cycle_time_ms": 5.0, "autotune": True}, {CYCLE: "7"}, {
        "HOROVOD_FUSION_THRESHOLD": str(3 * 2**19), CYCLE: "5.0", "HOROVOD_AUTOTUNE": "1"}),
    "Horovod on GPUs": (HOROVOD | GPUS | {"async_completion": True}, {}, {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}),
    "tuned": (HOROVOD | {"tuned": True}, {}, {CYCLE: str(MODES["horovod"].tuned["cpu"]["cycle_time_ms"])}),
    # What the user has set stays where no option says otherwise: the record shows both.
    "set": (HOROVOD, {"HOROVOD_GLOO_TIMEOUT_SECONDS": "99"}, {"HOROVOD_GLOO_TIMEOUT_SECONDS": "99"}),
    "mpirun": (HOROVOD | {"launcher": "mpirun", "cycle_time_ms": 5.0},
               {"OMPI_MCA_btl": "self,tcp", "HOROVOD_CONTROLLER": "gloo"},
               {"-np": "2", "-H": "localhost:2", "--bind-to": "none", "HOROVOD_CONTROLLER": "mpi", CYCLE: "5.0",
                "OMPI_MCA_btl": "self,tcp", "BENCH_RANK_IN": "OMPI_COMM_WORLD_RANK"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_what_an_engine_and_its_ranks_are_given(name, horovod, mpirun, monkeypatch, tmp_path):
    options, variables, expected = COMMANDS[name]
    place, torch = options.get("place", {}), options.get("torch")
    for each, value in ({CYCLE: None, TRACE: None, LATE: None} | variables).items():
        monkeypatch.setenv(each, value) if value else monkeypatch.delenv(each, raising=False)
    if torch:
        monkeypatch.setattr(launch_command, "torch_version", lambda: (torch, "13.0"))
    if options.get("launcher") == "mpirun":
        horovod(MPI)
        mpirun(OPEN_MPI)
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    config = config_of(**{each: value for each, value in options.items() if each not in ("place", "torch")})
    argv, given = command(config, Path("run"), **place)
    found = dict(itertools.pairwise(argv)) | given
    expected = {each: value and value.format(run_dir=tmp_path / "run") for each, value in expected.items()}
    assert {each: found.get(each) for each in expected} == expected


@pytest.mark.parametrize("url", ["tcp://203.0.113.1:29500", "tcp://a..b:29500", "file://{folder}/meet",
                                 "file://{folder}/nowhere/meet"])  # fmt: skip
def test_a_meeting_place_that_cannot_be(url, tmp_path):
    """A file may hold addresses of another run's ranks; for one without a folder all would wait until TIMEOUT."""
    (tmp_path / "meet").write_text("addresses")
    url = url.format(folder=tmp_path)
    with refuses(f"DIST_URL={url}"):
        command(config_of(dist_url=url, launcher="torchrun" if url.startswith("tcp") else "spawn"), tmp_path)
    assert (tmp_path / "meet").read_text() == "addresses"


def test_more_processes_than_memory_are_refused_before_the_first(tmp_path):
    config = config_of(num_devices=10**6, data="synthetic", out=str(tmp_path))
    with refuses("GPUS=1000000"):
        launch_run.launch(config)
    assert list(tmp_path.iterdir()) == []


def test_runs_of_the_same_second_do_not_meet(tmp_path, monkeypatch):
    """Also if they draw the same random name: the folder of the first is the second's neither to use nor to remove."""
    drawn = (str(i // 2) for i in itertools.count())
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(drawn))
    folders = {launch_run.make_run_dir(config_of(out=str(tmp_path))) for _ in range(20)}
    assert len(folders) == 20 and all((folder / "config.json").exists() for folder in folders)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with refuses("OUT="):
        launch_run.make_run_dir(config_of(out=str(tmp_path / "link")))


ADASUM, SHARED = HOROVOD | {"adasum": True}, HOROVOD | GPUS | {"share_gpu": True}
INSTALL, FAILS = "bench install-horovod --gpu nccl", "raise ImportError('libcudart')"


@pytest.mark.parametrize(
    ("options", "version", "says", "of_mpirun", "nccls", "words"),
    [
        # With a GPU's tensor the ranks of a Horovod without NCCL would die or hang, and nothing would say why.
        (HOROVOD, GLOO, "", "", None, None),
        (HOROVOD | GPUS, GLOO, "", "", None, INSTALL),
        (HOROVOD | GPUS, UNKNOWN, "print('mpi', 'gloo')", "", None, INSTALL),
        (HOROVOD | GPUS, UNKNOWN, FAILS, "", None, INSTALL),
        (HOROVOD | GPUS, UNKNOWN, "print('nccl', 'gloo')", "", None, None),
        (ADASUM, GLOO, "", OPEN_MPI, None, "ADASUM=1"),
        (ADASUM, UNKNOWN, "print('gloo')", OPEN_MPI, None, "ADASUM=1"),
        (ADASUM, MPI, "", "", None, "openmpi-bin"),
        (ADASUM, UNKNOWN, "print('mpi', 'gloo')", "HYDRA build details:", None, "HYDRA build details:"),
        # NCCL refuses two ranks on one GPU before 2.30, and without NCCL there is no road for a GPU's tensors.
        (SHARED, GLOO, "", "", "(2, 30, 7)", INSTALL),
        (SHARED, NCCL, "", "", "(2, 27, 5)", "SHARE_GPU=1"),
        (SHARED, NCCL, "", "", "None", "SHARE_GPU=1"),
        (SHARED, NCCL, "", "", "(2, 30, 7)", None),
    ],
)
def test_what_horovod_needs_is_said_before_anything_starts(
    options, version, says, of_mpirun, nccls, words, horovod, mpirun, torchs_nccl, monkeypatch, tmp_path
):  # fmt: skip
    monkeypatch.setattr(horovodrun, "loaded", lambda name: "")
    horovod(version, says)
    mpirun(of_mpirun)
    if nccls:
        torchs_nccl(nccls)
    with refuses("MODE=horovod ", words) if words else nullcontext():
        command(config_of(**options), tmp_path)


def test_a_study_on_gpus_leaves_out_what_cannot_run_there(horovod, capsys):
    horovod(GLOO)
    assert available(tables.terminal(), config_of("cuda")) == [mode for mode in COMPARED if mode != "horovod"]
    assert "horovod" in capsys.readouterr().out


def test_ranks_on_one_gpu_are_told_to_talk_nccl_where_theirs_can(torchs_nccl, monkeypatch):
    monkeypatch.setattr(devices, "has_mixed_gpus", lambda: False)
    shared = config_of(**SHARED)
    torchs_nccl("(2, 30, 7)")
    assert devices.device_variables(shared) == nccl.OF_SHARED
    assert devices.device_variables(config_of("cuda")) == devices.device_variables(config_of()) == {}
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    assert devices.device_variables(shared)["NCCL_MAX_CTAS"] == "8"
    monkeypatch.setenv(nccl.SHARING, "0")
    assert devices.device_variables(shared) == {}


DRIVER = """
import ctypes, json, os
from bench.cli.actions import joined
from bench.launch.engines import horovodrun
there = joined.LIBRARIES not in os.environ and bool(horovodrun.loaded("libcuda.so"))  # with packages to develop with
folder = os.environ.get(joined.LIBRARIES, "")
joined.find_driver()  # it begins again with the folder, once
ctypes.CDLL("libcuda.so")  # as Horovod does
print(json.dumps(there or (bool(folder) and not os.path.exists(folder))))
"""


def test_a_process_that_joins_finds_a_driver_that_has_only_its_numbered_library(nvml_stub, tmp_path):
    """In most containers there is libcuda.so.1 alone, and Horovod would throw at its first tensor of a GPU."""
    shutil.copy(nvml_stub.folder / "new" / "libnvidia-ml.so.1", tmp_path / "libcuda.so.1")
    assert nvml_stub.run(DRIVER, driver=tmp_path)


@pytest.mark.parametrize(
    ("given", "text", "nodes", "words"),
    [
        ({"batched_grad_copy": True}, "", 1, "BATCHED_GRAD_COPY=1"),
        ({"batched_grad_copy": True}, "batched_grad_copy=False", 1, None),
        ({"numa_binding": True}, "", 2, "NUMA_BINDING=1"),
        ({"numa_binding": True}, "--numa-binding", 1, "NUMA_BINDING=1"),
        ({"numa_binding": True}, "--numa-binding", 2, None),
    ],
)
def test_what_torch_or_the_machine_has_not_is_refused(given, text, nodes, words, monkeypatch, tmp_path):
    for file in ("nn/parallel/distributed.py", "distributed/run.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    for number in range(nodes):
        (tmp_path / "nodes" / f"node{number}").mkdir(parents=True)
    monkeypatch.setattr(devices, "torch_folder", lambda: tmp_path)
    monkeypatch.setattr(devices, "NUMA_NODES", tmp_path / "nodes")
    with refuses(words) if words else nullcontext():
        devices.require_torch(RunConfig(mode="ddp", num_devices=2, **given))


def launch_with(monkeypatch, config: RunConfig, program: str) -> BaseException:
    """How ``launch`` ends with a Python program, which gets the run's folder, instead of the launcher."""

    def made(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict]:
        return [sys.executable, "-c", program, str(run_dir)], {}

    monkeypatch.setattr(ENGINES[config.launcher], "command", made)
    with pytest.raises((RunFailed, UserError)) as raised:
        launch_run.launch(config)
    return raised.value


ENDS_WELL = """
import pathlib, shutil, sys
folder = pathlib.Path(sys.argv[1])
shutil.copy(folder / "config.json", folder / "seen.json")
(folder / "record.json.tmp").write_text('{"half')
"""


def test_a_run_without_a_record_is_a_failure(monkeypatch, tmp_path):
    """Its ranks have read the config that was launched. It contains the start of its own run, and no half record."""
    monkeypatch.setenv("BENCH_STARTED_AT", "1000.0")  # of another run
    config, began, variables = config_of(out=str(tmp_path)), steady.now(), dict(os.environ)
    folder = launch_with(monkeypatch, config, ENDS_WELL).run_dir
    failed = json.loads((folder / "record.json").read_text())
    assert (failed["status"], failed["failure"]["kind"]) == ("failed", "launcher")
    assert began - 0.001 <= datetime.fromisoformat(failed["started_at"]).timestamp() <= steady.now()
    assert dict(os.environ) == variables  # nothing for the next run to inherit
    assert json.loads((folder / "seen.json").read_text()) == to_dict(config)
    assert {path.name for path in folder.iterdir()} == {"record.json", "launcher.log", "seen.json"}


RAISES = """
import sys
from pathlib import Path
from bench.errors import UserError
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter
with Guard(Path(sys.argv[1]), 0) as guard:
    guard.status = StatusWriter(Path(sys.argv[1]), 0)
    guard.status.phase("waiting for data")
    raise UserError("a.jpg cannot be read")
"""


def test_an_impossible_request_leaves_its_logs_once_a_rank_has_begun(monkeypatch, tmp_path):
    """Before, nothing: tests/multiprocess/test_faults.py."""
    error = launch_with(monkeypatch, config_of(mode="single", num_devices=1, out=str(tmp_path)), RAISES)
    assert isinstance(error, UserError) and "a.jpg" in str(error) and str(error.run_dir) in str(error)
    (folder,) = tmp_path.iterdir()
    failure = json.loads((folder / "record.json").read_text())["failure"]
    assert (failure["rank"], failure["kind"]) == (0, "raised") and "a.jpg" in failure["message"]
    assert folder == error.run_dir and "a.jpg" in (folder / "rank0.log").read_text()


def leave(folder: Path, rank: int, when: float = 0.0, message: str = "") -> None:
    """The last heartbeat of a rank that is no more, and its report where it raised."""
    phase = PHASES.index("raised" if message else "forward")
    status_path(folder, rank).write_bytes(LAYOUT.pack(GONE, phase, 3, 10, 0.5, 1, *NO_WINDOW))
    if message:
        report = {"rank": rank, "time": when, "user_error": False, "message": message, "traceback": f"trace of {rank}"}
        error_path(folder, rank).write_text(json.dumps(report))


def test_the_killed_rank_is_named_before_those_that_complain_about_it(tmp_path):
    """Also when the engine is slow to end, and the limit passes. The last words of its log are quoted."""
    nodes = [Node(Placement(range(2)), tmp_path)]
    leave(tmp_path, 0, 1.0, "RuntimeError: Connection closed by peer")
    leave(tmp_path, 1)
    for error in (supervise.diagnose(1, nodes, tmp_path), supervise.describe_hang(nodes, tmp_path, 60)):
        assert (error.failure["rank"], error.failure["kind"]) == (1, "killed")
        assert "SIGKILL" in str(error) and "step 4 of 10, forward" in str(error)
    for words in ("  what():  CUDA error: an illegal memory access", "ProcessGroupNCCL's watchdog got stuck"):
        (tmp_path / "rank1.log").write_text(f"step 3\n{words}\nFatal Python error: Aborted\n")
        assert words.strip() in str(supervise.diagnose(1, nodes, tmp_path))


@pytest.mark.parametrize("last", ["", "no such option: --x"])
def test_an_engine_that_fails_by_itself_is_quoted(last, tmp_path):
    (tmp_path / "launcher.log").write_text(f"some words\n{last}\n" if last else "")
    error = supervise.diagnose(2, [Node(Placement(range(2)), tmp_path)], tmp_path)
    assert error.failure["kind"] == "launcher" and "code 2" in str(error) and last in str(error)
