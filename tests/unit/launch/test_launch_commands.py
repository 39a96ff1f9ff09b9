"""bench/launch: each engine's command is a pure function of the config; a request that cannot be met starts nothing."""

import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import shutil
import socket
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

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
from bench.launch.launcher import local_node
from bench.launch.node import Node, Placement
from bench.measure import nccl, steady
from bench.process.guard import LAUNCHER_PID, error_path
from bench.process.heartbeat import LAYOUT, NO_WINDOW, PHASES, status_path
from bench.studies.programs import available
from tests.runs import ROOT

pytestmark = pytest.mark.slow

RUN_DIR = Path("/runs/one")
GONE = 2**22 + 1  # above Linux's largest process id: nobody has it


def test_more_processes_than_memory_are_refused_before_the_first(monkeypatch):
    monkeypatch.setattr(launch_run, "make_run_dir", lambda config: pytest.fail("a run began"))
    for mode in ("ddp", "horovod"):
        config = resolve(RunConfig(mode=mode, num_devices=10**6, data="synthetic", device="cpu"), "cpu", 2)
        with pytest.raises(UserError, match=r"GPUS=1000000: each process .* GiB of memory: use GPUS=\d+ or less"):
            launch_run.launch(config)
    devices.require_memory(RunConfig(num_devices=4))


def config_of(**options) -> RunConfig:
    """A resolved config of two CPU workers."""
    return resolve(RunConfig(**{"mode": "ddp", "num_devices": 2} | options), "cpu", 4)


def command(config: RunConfig, run_dir: Path = RUN_DIR, **place) -> tuple[list[str], dict[str, str]]:
    """What starts a config's ranks on one node. place: of a Placement; all ranks, where nothing is said."""
    placement = Placement(**{"ranks": range(config.num_processes)} | place)
    return ENGINES[config.launcher].command(config, run_dir, placement)


def one_node(run_dir: Path, ranks: int = 2) -> Node:
    """The node of a run that is here alone; none of its processes has been started."""
    return Node(Placement(range(ranks)), run_dir)


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


# --- Which GPUs -----------------------------------------------------------------------------------------------------

# Every launcher starts its ranks with these GPUs in their environment, in which they look for them again.
STARTS = """
import json, sys
from bench.config.options import RunConfig
from bench.errors import RunFailed, UserError
from bench.launch import launcher
from bench.launch.node import Node
from bench.install import horovod_status
import bench.measure.nvml as nvml, os, tempfile, dataclasses
horovod_status.nccl_built = lambda: True
given, said = {given}, []
def start(node, argv, environment):
    os.environ["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "unset")
    said.append([gpu.index for gpu in nvml.visible_gpus()])
    raise UserError("not started")
Node.start = start
before = os.environ.get("CUDA_VISIBLE_DEVICES")
for mode, engine in {programs}:
    try:
        with tempfile.TemporaryDirectory() as out:
            config = launcher.resolve_here(RunConfig(mode=mode, launcher=engine, model="resnet18", out=out, **given))
            launcher.launch(config)
    except UserError as error:
        if "not started" not in str(error):
            said.append(str(error))
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if before is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = before
print(json.dumps(said))
"""
EVERY_LAUNCHER = [("dp", "in-process"), ("ddp", "torchrun"), ("ddp", "spawn"), ("horovod", "horovodrun")]


def started_on(nvml_stub, programs=EVERY_LAUNCHER[1:2], visible=None, **given) -> list:
    """The numbers of the GPUs that the ranks of each program see, or the line with which it is refused."""
    return nvml_stub.run(STARTS.format(given=given, programs=programs), visible=visible)


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
def test_every_launcher_gives_its_ranks_the_gpus_that_were_named(nvml_stub):
    assert started_on(nvml_stub, EVERY_LAUNCHER, gpu_ids="3,1", num_devices=2) == [[3, 1]] * 4


@pytest.mark.parametrize(
    ("ids", "visible", "seen"),
    [
        ("2,", None, [2]),
        ("GPU-d3333333,GPU-b1", None, [3, 1]),
        ("GPU-B1,0", None, [1, 0]),
        ("3,2", "2,3", [3, 2]),  # nvidia-smi's numbers, also where others are hidden
    ],
)
def test_gpus_are_named_by_number_or_uuid(nvml_stub, ids, visible, seen):
    assert started_on(nvml_stub, visible=visible, gpu_ids=ids, num_devices=len(seen)) == [seen]


@pytest.mark.parametrize(
    ("given", "visible", "words"),
    [
        (
            {"gpu_ids": "0,7", "num_devices": 2},
            None,
            ["7 does not exist", "choose from 0 (GPU-a0000000…), 1 (GPU-b1111111…)"],
        ),
        ({"gpu_ids": "0,2", "num_devices": 2}, "2,3", ["0 is hidden by CUDA_VISIBLE_DEVICES", "2 (GPU-"]),
        ({"gpu_ids": "GPU-ff", "num_devices": 1}, None, ["GPU-ff does not exist"]),
        ({"gpu_ids": "1,GPU-b1", "num_devices": 2}, None, ["names GPU 1 twice"]),
        ({"gpu_ids": "1,", "num_devices": 2}, None, ["GPUS=1, names 1 GPU, but 2 are needed"]),
        ({"gpu_ids": "0,1", "num_devices": 2}, "", ["no GPU is visible", "use GPUS=2 for 2 CPU workers"]),
    ],
)
def test_gpus_that_cannot_be_had_are_refused_in_one_line(nvml_stub, given, visible, words):
    (line,) = started_on(nvml_stub, visible=visible, **given)
    assert all(word in line for word in words) and "\n" not in line, line


# --- The commands ---------------------------------------------------------------------------------------------------


def test_every_mode_has_an_engine_for_each_of_its_launchers():
    assert set(ENGINES) == set(LAUNCHERS)
    assert {launcher for info in MODES.values() for launcher in info.launchers} == set(LAUNCHERS)


def test_in_process():
    argv, variables = command(config_of(mode="dp"))
    assert argv == [sys.executable, "-m", "bench.worker", "/runs/one"]
    assert variables == {"RANK": "0"}


def test_torchrun_finds_its_own_port_and_never_restarts():
    argv, variables = command(config_of(num_devices=3))
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert argv[argv.index("--nnodes") + 1] == "1"
    assert argv[argv.index("--nproc-per-node") + 1] == "3"
    assert argv[argv.index("--max-restarts") + 1] == "0"
    assert argv[argv.index("--rdzv-endpoint") + 1] == "127.0.0.1:0"
    assert argv[-3:] == ["-m", "bench.worker", "/runs/one"]
    assert variables == {}


def test_torchrun_at_a_given_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv, _ = command(config_of(dist_url=f"tcp://127.0.0.1:{port}"))
    assert argv[argv.index("--master-addr") + 1] == "127.0.0.1"
    assert argv[argv.index("--master-port") + 1] == str(port)
    assert "--rdzv-endpoint" not in argv


def test_spawn_meets_in_a_file_of_the_run_by_default(tmp_path):
    argv, variables = command(config_of(launcher="spawn"), tmp_path)
    assert argv == [sys.executable, "-m", "bench.launch.engines.spawn_ranks", str(tmp_path), "2"]
    assert variables == {"BENCH_INIT_METHOD": f"file://{tmp_path}/.rendezvous"}


def test_spawn_meets_in_an_absolute_file_when_the_folder_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results/x").mkdir(parents=True)
    _, variables = command(config_of(launcher="spawn"), Path("results/x"))
    assert variables["BENCH_INIT_METHOD"] == f"file://{tmp_path}/results/x/.rendezvous"


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:{port}", "file://{folder}/meet"])
def test_spawn_meets_where_it_is_told(url, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = url.format(port=free.getsockname()[1], folder=tmp_path)
    _, variables = command(config_of(launcher="spawn", dist_url=url))
    assert variables == {"BENCH_INIT_METHOD": url}


def test_horovodrun(some_horovod):
    argv, variables = command(config_of(mode="horovod", num_devices=3, timeout=60.0))
    assert argv[:3] == [sys.executable, "-m", "horovod.runner.launch"]
    assert argv[argv.index("-np") + 1] == "3" and argv[argv.index("-H") + 1] == "localhost:3"
    assert "--gloo" in argv
    assert argv[-4:] == [sys.executable, "-m", "bench.worker", "/runs/one"]
    assert "HOROVOD_CYCLE_TIME" not in variables
    assert float(variables["HOROVOD_GLOO_TIMEOUT_SECONDS"]) >= 60  # TIMEOUT decides, not Horovod's own 30 s
    assert variables["BENCH_RANK_IN"] == "HOROVOD_RANK"


def test_options_become_horovods_variables(some_horovod):
    _, variables = command(config_of(mode="horovod", fusion_mb=1.5, cycle_time_ms=5.0, autotune=True))
    assert variables["HOROVOD_FUSION_THRESHOLD"] == str(3 * 2**19)
    assert (variables["HOROVOD_CYCLE_TIME"], variables["HOROVOD_AUTOTUNE"]) == ("5.0", "1")


def test_horovods_host_need_not_wait_for_a_reduction_on_gpus(installed_horovod, tmp_path):
    installed_horovod(NCCL)
    name = "HOROVOD_ENABLE_ASYNC_COMPLETION"
    assert command(on_gpus(mode="horovod", async_completion=True), tmp_path)[1][name] == "1"
    assert name not in command(on_gpus(mode="horovod"), tmp_path)[1]


def test_tuned_sets_horovods_cycle(some_horovod):
    tuned = MODES["horovod"].tuned["cpu"]["cycle_time_ms"]
    assert tuned > 1  # Horovod's own
    _, variables = command(config_of(mode="horovod", tuned=True))
    assert float(variables["HOROVOD_CYCLE_TIME"]) == tuned


def test_what_the_user_has_set_stays_where_no_option_says_otherwise(some_horovod, monkeypatch):
    """The record shows options and variables: an option that something else overrides would be a false record."""
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "99")
    _, variables = command(config_of(mode="horovod"))
    assert "HOROVOD_CYCLE_TIME" not in variables and variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "99"
    _, variables = command(config_of(mode="horovod", cycle_time_ms=3.0))
    assert variables["HOROVOD_CYCLE_TIME"] == "3.0"


def test_a_node_starts_its_own_ranks_and_meets_the_others_at_the_first_node():
    """Of six ranks on three nodes the second node starts two. torchrun's rendezvous takes the nodes by their number."""
    place = {"ranks": range(2, 4), "number": 1, "count": 3, "main": "10.0.0.9", "port": 2950, "address": "10.0.0.10"}
    argv, _ = command(config_of(num_devices=6), **place)
    given = dict(itertools.pairwise(argv))
    assert (given["--nnodes"], given["--node-rank"], given["--nproc-per-node"]) == ("3", "1", "2")
    assert (given["--master-addr"], given["--master-port"], given["--local-addr"]) == ("10.0.0.9", "2950", "10.0.0.10")
    assert given["--rdzv-conf"] == "timeout=120" and "--rdzv-backend" not in given  # static: c10d sorts by address


def test_horovods_ranks_are_those_of_the_node(some_horovod):
    argv, _ = command(config_of(mode="horovod", num_devices=6), ranks=range(2, 4))
    assert argv[argv.index("-np") + 1] == "2"


def test_this_machine_is_one_node_with_all_ranks():
    node = local_node(config_of(num_devices=3), RUN_DIR)
    assert (list(node.placement.ranks), node.placement.number, node.placement.count) == ([0, 1, 2], 0, 1)
    node = local_node(config_of(mode="dp", num_devices=3), RUN_DIR)
    assert list(node.placement.ranks) == [0]


# --- What the processes are given -----------------------------------------------------------------------------------

SHOW = "import json, os, pathlib; pathlib.Path('seen').write_text(json.dumps(dict(os.environ)))"


@pytest.fixture
def environment_of(monkeypatch, tmp_path):
    """Makes the environment in which the processes of a config are started: that of a real one."""

    def make(config: RunConfig) -> dict:
        def show(nodes, start, run_dir, *rest):
            (node,) = nodes
            start(node)
            assert node.wait(30) == 0
            raise supervise.failed("launcher", None, "enough", run_dir)

        monkeypatch.setattr(ENGINES[config.launcher], "command", lambda *_: ([sys.executable, "-c", SHOW], {}))
        monkeypatch.setattr(supervise, "run", show)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(RunFailed):
            launch_run.launch(config)
        return json.loads(Path("seen").read_text())

    return make


@pytest.mark.parametrize(
    ("mode", "threads", "each"),
    [("ddp", 1, 1), ("ddp", 2, 1), ("ddp", 4, 2), ("ddp", 5, 2), ("dp", 1, 1), ("dp", 5, 5)],
)
def test_threads_are_shared_out_over_processes(environment_of, mode, threads, each):
    """Whatever the launcher's own default, and what the user's environment says."""
    variables = environment_of(config_of(mode=mode, threads=threads))
    assert (variables["OMP_NUM_THREADS"], variables["MKL_NUM_THREADS"]) == (str(each), str(each))


def test_the_workers_find_bench_and_their_launcher(environment_of, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    before = time.time()
    variables = environment_of(config_of())
    assert variables["PYTHONPATH"] == f"{ROOT}{os.pathsep}/mine"
    assert variables[LAUNCHER_PID] == str(os.getpid())
    assert variables["BENCH_RANK_IN"] == "RANK"
    assert before <= float(variables["BENCH_STARTED_AT"]) <= time.time()


# --- What cannot be started -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_busy_port_is_refused(launcher, busy_port):
    config = config_of(launcher=launcher, dist_url=f"tcp://127.0.0.1:{busy_port}")
    with pytest.raises(UserError, match=f"DIST_URL=tcp://127.0.0.1:{busy_port}.*Address already in use"):
        command(config)


@pytest.mark.parametrize("address", ["203.0.113.1:29500", "no-such-host.invalid:29500", "a..b:29500"])
def test_an_address_that_is_not_this_machines_is_refused(address):
    with pytest.raises(UserError, match=r"DIST_URL=tcp://"):
        command(config_of(dist_url=f"tcp://{address}"))


def test_a_file_of_another_run_is_refused(tmp_path):
    """The addresses in it would be taken for those of this run's ranks."""
    (tmp_path / "meet").write_text("addresses")
    with pytest.raises(UserError, match=r"DIST_URL=file://.*/meet.*"):
        command(config_of(launcher="spawn", dist_url=f"file://{tmp_path}/meet"), tmp_path)
    assert (tmp_path / "meet").read_text() == "addresses"


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path):
    """All ranks would wait for it until TIMEOUT."""
    with pytest.raises(UserError, match=r"DIST_URL=file://.*/nowhere"):
        command(config_of(launcher="spawn", dist_url=f"file://{tmp_path}/nowhere/meet"), tmp_path)


def test_horovod_missing_is_refused_with_the_remedy(no_horovod):
    with pytest.raises(UserError, match=r"MODE=horovod.*bench install-horovod"):
        command(config_of(mode="horovod"))


def on_gpus(**options) -> RunConfig:
    """A config of two GPUs, on which nothing is started."""
    return resolve(RunConfig(**{"mode": "ddp", "num_devices": 2} | options), "cuda", 4)


@pytest.fixture
def installed_horovod(some_horovod, monkeypatch):
    """``installed_horovod(version, said)``: this version is installed; where its name does not tell what it was built
    with, it says ``said``, in another process."""
    horovod_status._says.cache_clear()

    def install(version: str, said: str = "") -> None:
        monkeypatch.setattr(horovod_status, "installed_version", lambda: version)
        if said:
            monkeypatch.setattr(horovod_status, "ASK", said)

    yield install
    horovod_status._says.cache_clear()


GLOO, NCCL = "0.28.1+torch2.14.1.cu130.gloo.avx", "0.28.1+torch2.14.1.cu130.nccl.avx"
MPI = "0.28.1+torch2.14.1.cu130.gloo.mpi.avx"


@pytest.mark.parametrize(
    ("version", "said"),
    [(GLOO, ""), (MPI, ""), ("0.28.1", "print('mpi', 'gloo')"), ("0.28.1", "raise ImportError('libcudart')")],
)
def test_a_horovod_without_nccl_is_refused_on_gpus_before_anything_starts(version, said, installed_horovod, tmp_path):
    """With a GPU's tensor its ranks would die or hang, and nothing would say why."""
    installed_horovod(version, said)
    command(config_of(mode="horovod"))  # on CPUs it serves
    with pytest.raises(UserError, match=r"^MODE=horovod .*NCCL.*: run `bench install-horovod --gpu nccl"):
        command(on_gpus(mode="horovod"))


@pytest.mark.parametrize(("version", "said"), [(NCCL, ""), ("0.28.1", "print('nccl', 'gloo')")])
def test_a_horovod_with_nccl_is_started_on_gpus(version, said, installed_horovod, tmp_path):
    installed_horovod(version, said)
    assert "bench.worker" in command(on_gpus(mode="horovod"), tmp_path)[0]


@pytest.fixture
def some_mpirun(tmp_path, monkeypatch):
    """``some_mpirun("mpirun (Open MPI) 4.1.4")``: an mpirun that says so is on PATH; with "" there is none."""

    def install(says: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        if says:
            (folder / "mpirun").write_text(f"#!/bin/sh\necho '{says}'\n")
            (folder / "mpirun").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


def test_mpirun(installed_horovod, some_mpirun, monkeypatch):
    installed_horovod(MPI)
    some_mpirun("mpirun (Open MPI) 4.1.4")
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    argv, variables = command(config_of(mode="horovod", num_devices=4, launcher="mpirun", cycle_time_ms=5.0))
    assert argv[0] == "mpirun" and argv[argv.index("-np") + 1] == "4" and argv[argv.index("-H") + 1] == "localhost:4"
    assert argv[-4:] == [sys.executable, "-m", "bench.worker", "/runs/one"]
    assert {"--allow-run-as-root", "--oversubscribe", "--bind-to"} < set(argv)
    assert (variables["HOROVOD_CONTROLLER"], variables["HOROVOD_CYCLE_TIME"]) == ("mpi", "5.0")
    assert variables["OMPI_MCA_btl"] == "self,tcp"  # the user's
    assert variables["BENCH_RANK_IN"] == "OMPI_COMM_WORLD_RANK"


@pytest.mark.parametrize(
    ("version", "said", "mpirun_says", "words"),
    [
        (GLOO, "", "mpirun (Open MPI) 4.1.4", r"with MPI for ADASUM=1: run `bench install-horovod --mpi`"),
        ("0.28.1", "print('gloo')", "mpirun (Open MPI) 4.1.4", "with MPI for ADASUM=1"),
        (MPI, "", "", "mpirun is not found: install Open MPI"),
        (
            "0.28.1",
            "print('mpi', 'gloo')",
            "HYDRA build details:",
            r"mpirun is not Open MPI's .it prints HYDRA build details:",
        ),
    ],
)
def test_what_adasum_needs_is_said_before_anything_starts(
    version, said, mpirun_says, words, installed_horovod, some_mpirun
):
    installed_horovod(version, said)
    some_mpirun(mpirun_says)
    with pytest.raises(UserError, match=f"^MODE=horovod .*{words}") as error:
        command(config_of(mode="horovod", adasum=True))
    assert "\n" not in str(error.value)


DRIVER = """
import json, os, pathlib, subprocess, sys
from bench.launch.engines import horovodrun
there = bool(horovodrun.loaded("libcuda.so"))  # a machine with the driver's packages to develop with
variables = horovodrun.driver_library(pathlib.Path({folder!r}))
finds = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so')"]
done = subprocess.run(finds, env=os.environ | variables, capture_output=True)
print(json.dumps([there, bool(variables), done.returncode == 0]))
"""


def test_horovod_finds_a_driver_that_has_only_its_numbered_library(nvml_stub, tmp_path):
    """In most containers there is libcuda.so.1 alone, and Horovod would throw at its first tensor of a GPU."""
    library = tmp_path / "driver" / "libcuda.so.1"
    library.parent.mkdir()
    shutil.copy(nvml_stub.folder / "new" / "libnvidia-ml.so.1", library)
    there, given, found = nvml_stub.run(DRIVER.format(folder=str(tmp_path)), driver=library.parent)
    assert found and given != there
    if given:
        assert (tmp_path / ".libraries" / "libcuda.so").resolve() == library


def test_without_a_driver_no_library_is_looked_for(installed_horovod, monkeypatch, tmp_path):
    installed_horovod(NCCL)
    monkeypatch.setattr(horovodrun, "loaded", lambda name: "")
    assert "LD_LIBRARY_PATH" not in command(on_gpus(mode="horovod"), tmp_path)[1]
    assert list(tmp_path.iterdir()) == []


BEGINS_AGAIN = """
import ctypes, json, os, pathlib, sys
from bench.cli.actions import joined
from bench.launch.engines import horovodrun
there = joined.LIBRARIES not in os.environ and bool(horovodrun.loaded("libcuda.so"))
began, folder = os.getpid(), os.environ.get(joined.LIBRARIES, "")
joined.find_driver()
ctypes.CDLL("libcuda.so")  # as Horovod does
print(json.dumps([there, folder, os.path.exists(folder)]))
"""


def test_a_process_that_joins_finds_such_a_driver_too(nvml_stub, tmp_path):
    """Nobody here starts it: it begins again with the folder, and leaves nothing behind."""
    library = tmp_path / "driver" / "libcuda.so.1"
    library.parent.mkdir()
    shutil.copy(nvml_stub.folder / "new" / "libnvidia-ml.so.1", library)
    there, folder, left = nvml_stub.run(BEGINS_AGAIN, driver=library.parent)
    assert there or (folder and not left)


@pytest.mark.parametrize("mode", ["single", "dp", "ddp", "horovod", "fsdp"])
def test_what_explains_a_hang_is_the_same_for_every_mode(monkeypatch, mode):
    """And nothing on a CPU. What the user has set stays."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch_command, "torch_version", lambda: ("2.14.1", "13.0"))
    found = launch_command.hang_variables(on_gpus(mode=mode, num_devices=1, timeout=700.0))
    assert found.keys() == {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"}
    assert float(found["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) > 700 and int(found["TORCH_FR_BUFFER_SIZE"]) > 0
    monkeypatch.setattr(launch_command, "torch_version", lambda: ("2.7.1", "12.6"))
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "7")
    assert launch_command.hang_variables(on_gpus(mode=mode, num_devices=1))["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "7"
    assert launch_command.hang_variables(config_of(mode="ddp")) == {}


@pytest.fixture
def torchs_nccl(monkeypatch):
    """``torchs_nccl("(2, 30, 7)")``: what the torch here says of its NCCL, in a process of its own."""

    def say(version: str) -> None:
        monkeypatch.setattr(nccl, "ASK", f"import json; print(json.dumps({version}))")
        nccl.version.cache_clear()

    for name in nccl.OF_SHARED:
        monkeypatch.delenv(name, raising=False)
    yield say
    nccl.version.cache_clear()


@pytest.mark.parametrize(
    ("version", "nccls", "said"),
    [
        (GLOO, "(2, 30, 7)", "NCCL on GPUs: run `bench install-horovod"),
        (NCCL, "(2, 27, 5)", r"NCCL 2.30.*has 2.27.5: use MODE=ddp"),
        (NCCL, "None", "has none: use MODE=ddp"),
    ],
)
def test_which_horovod_shares_no_gpu(version, nccls, said, installed_horovod, torchs_nccl):
    """NCCL refuses two ranks on one GPU before 2.30, and without NCCL there is no road for a GPU's tensors."""
    installed_horovod(version)
    torchs_nccl(nccls)
    with pytest.raises(UserError, match=said):
        command(on_gpus(mode="horovod", share_gpu=True))


def test_ranks_on_one_gpu_are_told_to_talk_nccl_where_theirs_can(installed_horovod, torchs_nccl, monkeypatch, tmp_path):
    monkeypatch.setattr(horovodrun, "loaded", lambda name: "")
    monkeypatch.setattr(devices, "mixed", lambda: False)
    installed_horovod(NCCL)
    shared = on_gpus(mode="horovod", share_gpu=True)
    torchs_nccl("(2, 30, 7)")
    assert devices.device_variables(shared) == nccl.OF_SHARED and command(shared, tmp_path)
    assert devices.device_variables(on_gpus()) == devices.device_variables(config_of()) == {}
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    assert devices.device_variables(shared)["NCCL_MAX_CTAS"] == "8"
    monkeypatch.setenv(nccl.SHARING, "0")
    assert devices.device_variables(shared) == {}
    monkeypatch.delenv(nccl.SHARING)
    torchs_nccl("(2, 29, 9)")
    assert devices.device_variables(shared) == {}


def test_the_installed_torch_says_which_nccl_it_has():
    """As its metadata does, where it came with a wheel of it."""
    nccl.version.cache_clear()
    found = [d.version for d in importlib.metadata.distributions() if d.metadata["Name"].startswith("nvidia-nccl-")]
    assert [".".join(map(str, nccl.version()))] == found if found else True


def test_a_study_on_gpus_leaves_out_what_cannot_run_there(installed_horovod):
    said = []
    console = SimpleNamespace(print=said.append)
    installed_horovod(GLOO)
    assert available(console, config_of()) == COMPARED and not said
    assert available(console, on_gpus()) == [mode for mode in COMPARED if mode != "horovod"]
    assert len(said) == 1 and "left out: horovod needs a Horovod with NCCL" in said[0]


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
    monkeypatch.setattr(supervise, "run", lambda nodes, start, run_dir, *rest: happening(run_dir))
    with pytest.raises(RunFailed):
        launch_run.launch(config_of(out=str(tmp_path)))
    (folder,) = tmp_path.iterdir()
    return folder


def test_no_record_is_a_failure(monkeypatch, tmp_path):
    folder = launch_with(monkeypatch, tmp_path, lambda run_dir: None)
    failed = json.loads((folder / "record.json").read_text())
    assert failed["status"] == "failed" and failed["failure"]["kind"] == "launcher"


def test_a_failed_record_contains_the_start_of_its_own_run(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_STARTED_AT", "1000.0")  # of another run
    began, variables = steady.now(), dict(os.environ)
    folder = launch_with(monkeypatch, tmp_path, lambda run_dir: None)
    started = datetime.fromisoformat(json.loads((folder / "record.json").read_text())["started_at"]).timestamp()
    assert began - 0.001 <= started <= steady.now()
    assert dict(os.environ) == variables  # nothing for the next run to inherit


def test_a_rank_ended_while_it_wrote_the_record_leaves_no_half_of_it(monkeypatch, tmp_path):
    def happening(run_dir):
        (run_dir / "record.json.tmp").write_text('{"half')
        raise supervise.failed("killed", 0, "rank 0 was killed", run_dir)

    folder = launch_with(monkeypatch, tmp_path, happening)
    assert sorted(p.name for p in folder.iterdir()) == ["record.json"]


def leave_heartbeat(run_dir, rank, phase, step=3):
    """The last heartbeat of a rank that is no more."""
    status_path(run_dir, rank).write_bytes(LAYOUT.pack(GONE, PHASES.index(phase), step, 10, 0.5, 1, *NO_WINDOW))


def leave_error(run_dir, rank, when, message="RuntimeError: Connection closed by peer"):
    """The report of a rank that raised."""
    report = {"rank": rank, "time": when, "user_error": False, "message": message, "traceback": f"trace of {rank}"}
    error_path(run_dir, rank).write_text(json.dumps(report))
    leave_heartbeat(run_dir, rank, "raised")


def test_the_killed_rank_is_named_before_those_that_complain_about_it(tmp_path):
    leave_error(tmp_path, 0, when=1.0)
    leave_heartbeat(tmp_path, 1, "forward")
    failure = supervise.diagnose(1, [one_node(tmp_path)], tmp_path).failure
    assert (failure["rank"], failure["kind"]) == (1, "killed")


def test_the_killed_rank_is_named_even_when_the_engine_is_slow_to_end(tmp_path):
    """The others' complaints shorten the run's deadline; when it passes, the first cause is still the killed rank."""
    leave_error(tmp_path, 0, when=1.0)
    leave_heartbeat(tmp_path, 1, "forward")
    failure = supervise.hung([one_node(tmp_path)], tmp_path, 60).failure
    assert (failure["rank"], failure["kind"]) == (1, "killed")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("step 3\n[rank1]:[E] [PG 0] Watchdog caught collective operation timeout\nterminate called after throwing\n"
         "  what():  CUDA error: an illegal memory access was encountered\nAborted\n", "died (what():  CUDA error: an"),
        ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n", "watchdog got stuck"),
        ("step 3\n", "was killed (SIGKILL, out of memory) or crashed"),
        ("", "was killed (SIGKILL, out of memory) or crashed"),
    ],
)  # fmt: skip
def test_the_last_words_of_a_rank_that_is_gone_are_quoted(tmp_path, log, said):
    leave_heartbeat(tmp_path, 1, "forward")
    (tmp_path / "rank1.log").write_text(log)
    message = supervise.diagnose(1, [one_node(tmp_path)], tmp_path).failure["message"]
    assert message.startswith("rank 1 ") and said in message and "at step 4 of 10, forward" in message


def test_the_first_error_is_the_cause(tmp_path):
    leave_error(tmp_path, 0, when=2.0)
    leave_error(tmp_path, 1, when=1.0, message="ValueError: first")
    error = supervise.diagnose(1, [one_node(tmp_path)], tmp_path)
    assert error.failure == {
        "rank": 1, "kind": "raised", "message": "rank 1 raised ValueError: first", "traceback": "trace of 1",
    }  # fmt: skip
    assert str(error).endswith(f"see {tmp_path / 'rank1.log'}") and error.exit_code == 1


def test_an_engine_that_fails_by_itself_is_quoted(tmp_path):
    (tmp_path / "launcher.log").write_text("some words\nno such option: --x\n")
    error = supervise.diagnose(2, [one_node(tmp_path)], tmp_path)
    assert error.failure["kind"] == "launcher" and "code 2: no such option: --x" in error.failure["message"]


def test_an_engine_that_fails_silently_is_said_to(tmp_path):
    assert "it printed nothing" in supervise.diagnose(1, [one_node(tmp_path)], tmp_path).failure["message"]


RAISING = """
import sys
from pathlib import Path
from bench.errors import UserError
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter
with Guard(Path(sys.argv[1]), 0) as guard:
    guard.status = StatusWriter(Path(sys.argv[1]), 0)
    guard.status.phase(sys.argv[2])
    raise UserError("a.jpg cannot be read")
"""


@pytest.mark.parametrize(
    ("phase", "kept"), [("building the model", False), ("waiting for data", True), ("validating", True)]
)
def test_an_impossible_request_leaves_its_logs_once_a_rank_has_begun(phase, kept, monkeypatch, tmp_path):
    config = config_of(mode="single", num_devices=1, out=str(tmp_path))
    argv = [sys.executable, "-c", RAISING]
    monkeypatch.setattr(
        ENGINES[config.launcher], "command", lambda _, run_dir, *rest: ([*argv, str(run_dir), phase], {})
    )
    with pytest.raises(UserError, match="cannot be read") as raised:
        launch_run.launch(config)
    folders = list(tmp_path.iterdir())
    assert folders == ([raised.value.run_dir] if kept else [])
    for folder in folders:
        failure = json.loads((folder / "record.json").read_text())["failure"]
        assert (failure["rank"], failure["kind"], failure["message"]) == (0, "raised", "a.jpg cannot be read")
        assert "a.jpg" in (folder / "rank0.log").read_text() and str(folder) in str(raised.value)


def test_a_config_crosses_the_boundary_unchanged(tmp_path, monkeypatch):
    """What the worker will read is the config that was launched."""
    seen = {}

    def happening(run_dir):
        seen.update(json.loads((run_dir / "config.json").read_text()))
        raise supervise.failed("launcher", None, "enough", run_dir)

    launch_with(monkeypatch, tmp_path, happening)
    assert seen == to_dict(config_of(out=str(tmp_path)))


BEATING = """
import json, sys, time
from datetime import datetime
from pathlib import Path
from bench.process.heartbeat import StatusWriter
status = StatusWriter(Path(sys.argv[1]), 0)
for phase, seconds in json.loads(sys.argv[2]):
    status.phase(phase)
    time.sleep(seconds)
status.phase("done")
"""
ON, STILL = ("validating", 0.5), ("validating", 60)


def beating(tmp_path, *phases: tuple[str, float], **limits):
    """A rank that is in these phases for so many seconds each, under a TIMEOUT of 3 s where no other is given."""
    argv = [sys.executable, "-c", BEATING, str(tmp_path), json.dumps(phases)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    node = one_node(tmp_path, ranks=1)
    supervise.run([node], lambda node: node.start(argv, environment), tmp_path, **{"timeout": 3.0} | limits)


def test_a_run_that_goes_on_may_take_longer_than_timeout(tmp_path):
    started, seen = time.monotonic(), []
    beating(tmp_path, *[ON] * 9, watch=lambda beats, rows: seen.append(beats))
    assert time.monotonic() - started > 4
    assert {beat.phase for (beat,) in seen if beat} >= {"validating"}


def test_a_run_that_stands_still_is_ended(tmp_path):
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"no progress for 3 s .*TIMEOUT"):
        beating(tmp_path, ON, ON, STILL)
    assert 3 < time.monotonic() - started < 30


def test_ranks_may_be_given_longer_to_join(tmp_path):
    """A machine may come later than another; once all have joined, TIMEOUT alone counts."""
    joining = ("joining the group", 2.5)
    beating(tmp_path, joining, timeout=1.0, starting=60.0)
    for phases, starting in (([joining], 0.0), ([ON, STILL], 60.0)):
        with pytest.raises(RunFailed, match=r" 1 s .*TIMEOUT"):
            beating(tmp_path, *phases, timeout=1.0, starting=starting)


# --- What only some versions of torch, or some machines, have -------------------------------------------------------


def test_torchrun_binds_ranks_to_the_cpus_near_their_gpus():
    words = ["--numa-binding", "node"]
    for mode in ("ddp", "independent"):
        argv, _ = command(on_gpus(mode=mode, numa_binding=True))
        assert [argv[i : i + 2] for i in range(len(argv)) if argv[i] == words[0]] == [words]
        assert words[0] not in command(on_gpus(mode=mode))[0]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """``machine(…)``: a torch with these words in its files, and so many NUMA nodes."""

    def make(ddp: str = "", torchrun: str = "", nodes: int = 1) -> None:
        for file, text in (("nn/parallel/distributed.py", ddp), ("distributed/run.py", torchrun)):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
        for number in range(nodes):
            (tmp_path / "nodes" / f"node{number}").mkdir(parents=True)
        monkeypatch.setattr(devices, "torch_folder", lambda: tmp_path)
        monkeypatch.setattr(devices, "NUMA_NODES", tmp_path / "nodes")

    return make


@pytest.mark.parametrize(
    ("given", "has", "words"),
    [
        ({"batched_grad_copy": True}, {}, "BATCHED_GRAD_COPY=1: not supported by DDP"),
        ({"batched_grad_copy": True}, {"ddp": "batched_grad_copy=False"}, None),
        ({"numa_binding": True}, {"nodes": 2}, "NUMA_BINDING=1: not supported by torchrun"),
        ({"numa_binding": True}, {"torchrun": '"--numa-binding"'}, "one NUMA node"),
        ({"numa_binding": True}, {"torchrun": '"--numa-binding"', "nodes": 2}, None),
        ({}, {}, None),
    ],
)
def test_what_torch_or_the_machine_has_not_is_refused_before_anything_starts(machine, given, has, words):
    machine(**has)
    with pytest.raises(UserError, match=words) if words else contextlib.nullcontext():
        devices.require_torch(RunConfig(mode="ddp", num_devices=2, **given))


def test_a_numa_binding_is_torchruns_and_of_gpus():
    with pytest.raises(UserError, match="NUMA_BINDING=1 needs LAUNCHER=torchrun"):
        RunConfig(mode="ddp", launcher="spawn", numa_binding=True)
    with pytest.raises(UserError, match="this run uses none"):
        config_of(numa_binding=True)


def test_the_installed_ddp_takes_what_is_found_in_it():
    """What is told by a word in a file is what the class says."""
    import inspect

    from torch.nn.parallel import DistributedDataParallel

    taken = "batched_grad_copy" in inspect.signature(DistributedDataParallel).parameters
    assert devices.torch_has("nn/parallel/distributed.py", "batched_grad_copy") is taken
