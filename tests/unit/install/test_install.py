"""Setting up: names of wheels, detection, environments and messages. Nothing is downloaded or built here."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import __main__ as cli
from bench.cli import COMMANDS, OF_MAKE, every
from bench.cli import install as install_command
from bench.config.fields import flag_of, variable_of
from bench.config.options import FIELDS
from bench.errors import BenchError, UserError
from bench.files import LINUX
from bench.install import horovod_install as horovod
from bench.install import horovod_status, toolchain, torch_build
from bench.install import packages as environment
from bench.install.logged import run_logged
from tests.runs import wait_for

ROOT = Path(__file__).resolve().parents[3]
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
CLEAN = {"PATH": os.environ["PATH"]}  # nothing of the make that may have started these tests
GUARD = """
#if __cplusplus < {}
#error C++{} or later compatible compiler is required
#endif
"""

# Stands for Python: prints its arguments, one a line. It can list the commands, as every Python can.
FAKE_PYTHON = f"""#!/bin/sh
case "$*" in
  "-m bench help --targets") PYTHONPATH="{ROOT}" exec "{sys.executable}" "$@" ;;
esac
printf '%s\\n' "$@"
"""


def run_make(*arguments, folder=ROOT, env=None):
    """`make -n`: what a target would run, as one string, and the exit code."""
    command = ["make", "-n", "--no-print-directory", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=CLEAN | (env or {}))
    return result.stdout + result.stderr, result.returncode


@pytest.fixture
def fake_project(tmp_path):
    """A folder with our Makefile and an environment that says of itself that it is ready, for the course, too."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    install = tmp_path / "bench" / "install"
    python = tmp_path / ".venv" / "bin" / "python"
    for folder in (install, python.parent):
        folder.mkdir(parents=True)
    for path in (install / "requirements.lock", install / "requirements-notebooks.lock", tmp_path / "pyproject.toml"):
        path.touch()
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    for stamp in (".ready", ".course"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


# --- Which wheel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "kind", "simd", "label"),
    [
        ("2.14.1+cu130", "gloo", True, "torch2.14.1.cu130.gloo.avx"),
        ("2.14.1+cpu", "gloo", False, "torch2.14.1.cpu.gloo"),
        ("2.8.0a0+5228986c39.nv25.06", "nccl", True, "torch2.8.0a0.5228986c39.nv25.6.nccl.avx"),
    ],
)
def test_label_names_torch_kind_and_instructions(torch, kind, simd, label):
    assert horovod_status.version_label(torch, kind, simd) == label
    assert horovod_status.built_with(label)[0].lower() == kind  # and with MPI besides
    with_mpi = horovod_status.version_label(torch, kind, simd, mpi=True)
    assert with_mpi.startswith(label.removesuffix(".avx") + ".mpi") and "MPI" in horovod_status.built_with(with_mpi)


@pytest.mark.parametrize(
    ("installed", "kind", "simd", "state"),
    [
        (None, "gloo", True, "missing"),
        ("0.28.1+torch2.14.1.cu130.gloo.avx", "gloo", True, "ready"),
        ("0.28.1+torch2.14.1.cu130.nccl.avx", "gloo", True, "ready"),
        ("0.28.1+torch2.14.1.cu130.gloo.avx", "nccl", True, "no nccl"),
        ("0.28.1+torch2.14.1.cu130.gloo.avx", "gloo", False, "other cpu"),
        ("0.28.1+torch2.14.1.cpu.gloo.avx", "gloo", True, "other torch"),
        ("0.28.1+torch2.13.0.cu130.gloo", "gloo", True, "other torch"),
        ("0.28.1", "gloo", True, "unknown build"),
        ("0.28.1+torch2.14.1.cu130.nccl.avx.sm90", "nccl", True, "ready"),
        ("0.28.1+torch2.14.1.cu130.nccl.avx.sm80.sm90", "nccl", True, "ready"),
        ("0.28.1+torch2.14.1.cu130.nccl.avx.sm80", "nccl", True, "other gpu"),
        ("0.28.1+torch2.14.1.cu130.nccl.avx.sm80", "gloo", True, "ready"),
        ("0.28.1+torch2.14.1.cu130.gloo.mpi.avx", "gloo", True, "ready"),
        ("0.28.1+torch2.14.1.cu130.gloo.mpi.avx", "gloo", False, "other cpu"),
        ("0.28.1+torch2.14.1.cu130.nccl.mpi.avx.sm80", "nccl", True, "other gpu"),
    ],
)
def test_state_of_an_installed_horovod(installed, kind, simd, state):
    """On a machine whose GPUs are of generation 9.0. Asked for with MPI, one that has none will not do."""
    assert horovod_status.judge(installed, "2.14.1+cu130", kind, simd, ("90",)) == state
    with_mpi = horovod_status.judge(installed, "2.14.1+cu130", kind, simd, ("90",), mpi=True)
    lacks = state in ("ready", "other cpu", "other gpu") and ".mpi" not in installed
    assert with_mpi == ("no mpi" if lacks else state)


def test_a_build_for_the_gpus_here_needs_one(monkeypatch):
    monkeypatch.setattr(horovod_status, "torch_version", lambda: ("2.14.1+cu130", "13.0"))
    gpus = [SimpleNamespace(compute_capability=each) for each in ("10.0", "8.6", "8.6", None)]
    monkeypatch.setattr(horovod_status, "visible_gpus", lambda: gpus)
    assert horovod_status.status("here").label.endswith(".sm86.sm100")
    assert ".sm" not in horovod_status.status("nccl").label
    monkeypatch.setattr(horovod_status, "visible_gpus", lambda: [])
    with pytest.raises(UserError, match=r"--gpu here .* none is: use --gpu nccl"):
        horovod_status.status("here")


def test_cached_wheel_is_found_by_python_platform_and_label(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(horovod_status.sysconfig, "get_platform", lambda: "linux-x86_64")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    name = f"horovod-0.28.1+torch2.6.0.gloo-{tag}-{tag}-linux_x86_64.whl"
    wheels = tmp_path / "data-parallel-bench" / "wheels"
    wheels.mkdir(parents=True)
    for other in (
        name,
        name.replace(tag, "cp39"),
        name.replace("x86_64", "aarch64"),
        name.replace("gloo", "nccl"),
    ):
        (wheels / other).touch()
    assert horovod_status.cached_wheel("torch2.6.0.gloo") == wheels / name
    assert horovod_status.cached_wheel("torch2.7.0.gloo") is None


def test_torch_version_is_read_without_importing_torch(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    text = "__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\n"
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert horovod_status.torch_version() == ("2.6.0+cu124", "12.4")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n")
    assert horovod_status.torch_rocm() is None
    assert horovod_status.torch_version() == ("2.6.0+cpu", None)
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.7.0+rocm6.3'\ncuda = None\nhip: str = '6.3.42'\n")
    assert horovod_status.torch_rocm() == "6.3.42"


def test_status_is_quick_and_leaves_torch_alone():
    """By the processor's time: other tests may be running."""
    script = (
        "import json, sys, time; start = time.process_time(); from bench.install import horovod_install as horovod;"
        "horovod.status(); print(json.dumps([time.process_time() - start, 'torch' in sys.modules]))"
    )
    texts = [subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True) for _ in range(3)]
    seconds = min(json.loads(text)[0] for text in texts)
    assert seconds < 0.2
    assert json.loads(texts[0])[1] is False


# --- The machine --------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(("number", "standard"), [("201402L", 14), ("201703L", 17), ("202002L", 20)])
def test_cxx_standard_is_found_in_the_headers(tmp_path, number, standard):
    (tmp_path / "ATen").mkdir()
    (tmp_path / "ATen" / "ATen.h").write_text(GUARD.format(number, standard))
    assert toolchain.cxx_standard(COMPILER, [str(tmp_path)]) == standard


@needs_compiler
def test_compiler_too_old_for_the_headers_is_one_line(tmp_path):
    (tmp_path / "ATen").mkdir()
    (tmp_path / "ATen" / "ATen.h").write_text(GUARD.format("209901L", 99))
    with pytest.raises(UserError, match=r"C\+\+99 or later .*install a newer compiler") as caught:
        toolchain.cxx_standard(COMPILER, [str(tmp_path)])
    assert "\n" not in str(caught.value)


def test_no_compiler_is_one_line_with_the_remedy(tmp_path):
    """A real process whose PATH is empty, with a Python that finds a stand-in for torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.99.0'\ncuda: Optional[str] = None\n")
    env = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "bench", "install", "horovod", "--force"]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    (last,) = result.stderr.strip().splitlines()
    assert result.returncode == 2
    assert last.startswith("bench: no C++ compiler found (g++ or clang++): ")
    assert "everything but MODE=horovod works" in last
    assert "apt-get install g++" in last and last.endswith("then run `bench install-horovod`")


def test_mpi_missing_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^no mpicxx found.*apt-get install openmpi-bin libopenmpi-dev.*--mpi`$"):
        toolchain.require_build_tools(mpi=True)


def test_torch_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(horovod_status, "torch_version", lambda: None)
    with pytest.raises(UserError, match="torch is not installed for"):
        horovod.install()


def test_gpu_kind_follows_the_gpu_and_the_torch(monkeypatch):
    monkeypatch.setattr(horovod_status, "gpu_present", lambda: False)
    assert horovod_status.wanted_kind("auto", "13.0") == "gloo"
    assert horovod_status.wanted_kind("nccl", "13.0") == "nccl"
    monkeypatch.setattr(horovod_status, "gpu_present", lambda: True)
    assert horovod_status.wanted_kind("auto", "13.0") == "nccl"
    assert horovod_status.wanted_kind("auto", None) == "gloo"
    assert horovod_status.wanted_kind("none", "13.0") == "gloo"
    with pytest.raises(UserError, match=r"without CUDA.*--gpu none"):
        horovod_status.wanted_kind("nccl", None)


def test_cuda_wheels_are_arranged_as_a_toolkit(tmp_path):
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    root = horovod.arrange_toolkit(tmp_path)
    assert (root / "lib64" / "libcudart.so").resolve() == library


@pytest.fixture
def installed_nvcc(tmp_path, monkeypatch):
    """``installed_nvcc("13.2")``: an nvcc of that CUDA is on PATH; its home. archs: what it compiles for, if told.
    No network: nothing is fetched."""

    def install(release: str, archs: str = "") -> Path:
        nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True, exist_ok=True)
        listed = f"printf '%s\\n' {archs}; exit 0" if archs else "exit 1"
        nvcc.write_text(
            f"#!/bin/sh\n[ $1 = --list-gpu-arch ] && {{ {listed}; }}\n"
            f"echo 'Cuda compilation tools, release {release}, V{release}.131'\n"
        )
        nvcc.chmod(0o755)
        header = nvcc.parents[1] / "include" / "cuda_runtime.h"
        header.parent.mkdir(exist_ok=True)
        header.touch()
        monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
        return nvcc.parents[1]

    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(horovod, "INSTALLED", tmp_path / "nowhere")
    monkeypatch.setattr(horovod, "arrange_nccl", lambda folder: None)
    return install


def gpu_environment(torch_cuda: str, tmp_path: Path, label: str = "torch2.14.1.cu130.nccl.avx") -> dict:
    """The variables of a GPU build for a torch of this CUDA."""
    facts = FACTS | {"cuda": torch_cuda, "archs": "sm_80 sm_90"}
    return horovod.gpu_environment(facts, label, tmp_path, tmp_path / "log", time.monotonic() + 60)


def test_torch_for_cuda_12_needs_an_installed_nvcc(installed_nvcc, tmp_path):
    home = installed_nvcc("12.4")
    assert gpu_environment("12.6", tmp_path)["HOROVOD_CUDA_HOME"] == str(home)
    with pytest.raises(UserError, match="no nvcc for CUDA 11 found"):
        gpu_environment("11.8", tmp_path)


def test_an_installed_nvcc_that_fits_is_preferred_to_wheels(installed_nvcc, tmp_path, monkeypatch):
    """Wheels come by network. One of another major version does not fit."""
    fetched = []
    monkeypatch.setattr(horovod, "run_step", lambda command, *_: fetched.append(command))
    monkeypatch.setattr(horovod, "arrange_toolkit", lambda folder: folder)
    home = installed_nvcc("13.2")
    env = gpu_environment("13.0", tmp_path)
    assert env["HOROVOD_CUDA_HOME"] == str(home) and not fetched
    assert env["HOROVOD_BUILD_CUDA_CC_LIST"] == "80,90"
    installed_nvcc("12.4")
    env = gpu_environment("13.0", tmp_path, "torch2.14.1.cu130.nccl.avx.sm90")
    assert env["HOROVOD_CUDA_HOME"] != str(home) and "nvidia-cuda-nvcc==13.0.*" in fetched[0]
    assert env["HOROVOD_BUILD_CUDA_CC_LIST"] == "90"


@pytest.mark.parametrize(
    ("archs", "label", "listed"),
    [
        ("", "torch2.14.1.cu130.nccl.avx", "80,90"),  # it does not say: all of torch's
        ("compute_70 compute_80 compute_86 compute_90", "torch2.14.1.cu130.nccl.avx", "80,90"),
        ("compute_70 compute_80", "torch2.14.1.cu130.nccl.avx", "80"),  # and the driver translates it for 9.0
        ("compute_80 compute_90", "torch2.14.1.cu130.nccl.avx.sm120", "90"),
        ("compute_100", "torch2.14.1.cu130.nccl.avx", None),
    ],
)
def test_only_what_the_installed_nvcc_has_is_compiled(installed_nvcc, tmp_path, archs, label, listed):
    """It may be older than the one that torch was compiled with."""
    installed_nvcc("13.0", archs)
    if listed is None:
        with pytest.raises(UserError, match=r"nvcc cannot compile for .*sm_80, sm_90.*CUDA_HOME.*--gpu none"):
            gpu_environment("13.0", tmp_path, label)
    else:
        assert gpu_environment("13.0", tmp_path, label)["HOROVOD_BUILD_CUDA_CC_LIST"] == listed


# --- The build ----------------------------------------------------------------------------------------------

FACTS = {
    "version": "2.14.1+cu130",
    "cuda": "13.0",
    "abi": True,
    "lib": "/t/lib",
    "include": ["/t/i"],
    "archs": "",
}


def build_environment(**changes):
    given = {
        "facts": FACTS,
        "label": "torch2.14.1.gloo",
        "compiler": "/usr/bin/g++",
        "cmake": "/usr/bin/cmake",
        "standard": 20,
        "simd": ("-mavx",),
        "jobs": 3,
        "work": Path("/w"),
        "gpu": {},
    }
    caller = {"HOME": "/h", "HOROVOD_GPU": "ROCM", "MAKEFLAGS": "w"}
    return horovod.build_environment(caller, **given | changes)


def test_build_environment_for_cpus():
    env = build_environment()
    assert env["HOME"] == "/h"
    assert env["MAKEFLAGS"] == "-j3"
    assert env["BENCH_CXX_STANDARD"] == "20"
    assert env["BENCH_TORCH_ABI"] == "TRUE"
    assert env["BENCH_TORCH_LIBRARIES"] == "c10;torch;torch_cpu;torch_python"
    assert env["HOROVOD_LOCAL_VERSION"] == "torch2.14.1.gloo"
    assert not {"HOROVOD_GPU", "HOROVOD_GPU_OPERATIONS", "HOROVOD_CUDA_HOME", "HOROVOD_WITH_MPI"} & set(env)
    with_mpi = build_environment(label="torch2.14.1.gloo.mpi")
    assert with_mpi["HOROVOD_WITH_MPI"] == "1" and "HOROVOD_WITHOUT_MPI" not in with_mpi
    assert Path(env["CMAKE_TOOLCHAIN_FILE"]).exists()


def test_build_environment_for_gpus():
    env = build_environment(gpu={"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": "/c"})
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert env["BENCH_TORCH_LIBRARIES"].endswith("c10_cuda;torch_cuda")
    assert env["BENCH_TORCH_INCLUDE"].endswith(";/c/include")


def test_overlay_reads_only_variables_that_the_build_sets():
    env = build_environment(gpu={"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": "/c"})
    texts = [path.read_text() for path in horovod.OVERLAY.iterdir()]
    used = set(re.findall(r"ENV\{(\w+)\}", "".join(texts)))
    assert len(texts) == 3 and used <= set(env)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "x.cc:1:2: error: first\nx.cc:9:9: error: second\nmake: *** [all] Error 2",
            "x.cc:1:2: error: first",
        ),
        ("/usr/bin/python: No module named pip", "has no pip"),
        ("WARNING: Retrying\nERROR: No matching distribution found for horovod", "is there a network?"),
        ("error: externally-managed-environment", "closed to pip"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'\nERROR: Failed building wheel", "--gpu here"),
        ("nvcc fatal   : Unknown option\nERROR: Failed building wheel for horovod", "nvcc fatal   : Unknown option"),
        ("something\nthe end\n", "the end"),
    ],
)
def test_a_failed_step_is_explained(output, reason):
    assert reason in horovod.explain_failure(output)


# --- Long commands ------------------------------------------------------------------------------------------


def test_run_logged_keeps_output_and_exit_code(tmp_path, capsys):
    log = tmp_path / "log"
    script = "import sys; print('[ 50%] half'); sys.exit(3)"
    assert run_logged([sys.executable, "-c", script], log, "trying") == 3
    assert "[ 50%] half" in log.read_text()
    assert "trying: failed" in capsys.readouterr().out


def test_run_logged_ends_the_whole_family_at_the_limit(tmp_path):
    script = "import subprocess; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
    log = tmp_path / "log"
    with pytest.raises(TimeoutError):
        run_logged([sys.executable, "-c", script], log, "trying", deadline=time.monotonic() + 1.5)
    grandchild = int(log.read_text().splitlines()[-1])
    assert not is_running(grandchild)


def test_sigterm_ends_the_family_too(tmp_path):
    log = tmp_path / "log"
    script = f"from bench.install.logged import run_logged; run_logged(['sleep', '61'], {str(log)!r}, 'trying')"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()  # the title is written before the command starts
    family = wait_for(lambda: psutil.Process(process.pid).children(recursive=True), "the command")
    family = [child.pid for child in family]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert family and not any(map(is_running, family))


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- Packages --------------------------------------------------------------------------------------------


def test_requirements_that_are_installed_are_not_asked_for_again(monkeypatch):
    monkeypatch.setattr(environment, "_version", lambda name: "1" if name not in ("rich", "pre-commit") else "")
    assert [line[:4] for line in environment.missing_requirements([])] == ["rich"]
    assert [line.split(">")[0] for line in environment.missing_requirements(["dev"])] == [
        "rich",
        "pre-commit",
    ]


def test_constraints_hold_what_is_installed():
    lines = environment.installed_versions()
    assert any(re.fullmatch(r"pytest==[\w.]+", line) for line in lines)
    assert not any(line.startswith("data-parallel-bench==") for line in lines)


def test_wrong_python_is_one_line():
    with pytest.raises(environment.SetupError, match=r"^Python 3.1 to 3.2 is needed, and .*PYTHON=.*$"):
        environment.check_python(((3, 1), (3, 2)))


def test_the_oldest_torch_is_the_same_wherever_it_stands():
    oldest = ".".join(map(str, torch_build.OLDEST))
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    for page in ("README.md", "tutorials/manual/where_it_runs.md"):
        assert set(re.findall(r"torch (\S+) or newer", (ROOT / page).read_text())) == {oldest}, page


def test_the_manual_names_the_wheels_of_a_machine_without_an_index(monkeypatch):
    """All but torch and torchvision, which such a machine has."""
    monkeypatch.setattr(environment, "_version", lambda name: "1" if name.startswith("torch") else "")
    needed = [re.split(r"[<>=]", line)[0] for line in environment.missing_requirements([])]
    (named,) = re.findall(r"pip download --dest wheels (.*)", (ROOT / "tutorials/manual/where_it_runs.md").read_text())
    assert named.split() == sorted(needed)


def test_a_python_whose_torch_is_too_old_is_told_so(monkeypatch, capsys):
    monkeypatch.setattr(environment, "_version", lambda name: "2.6.0+cu124")
    assert environment.main(["--venv", "none"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("setup: torch 2.6.0+cu124 is installed for") and said.count("\n") == 1


def test_a_folder_that_is_no_environment_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(environment.SetupError, match="not a virtual environment"):
        environment.make_venv(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_lock_files_agree_and_name_no_host():
    read = [(ROOT / "bench" / "install" / f"requirements{part}.lock").read_text() for part in ("", "-notebooks")]
    base, notebooks = (dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)) for text in read)
    assert all(base[name] == notebooks[name] for name in base.keys() & notebooks.keys())
    assert not any("://" in text for text in read)


def test_a_python_that_is_too_old_is_told_so(capsys, monkeypatch):
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    assert environment.main(["--check"]) == 0
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", ((9, 9),))
    assert environment.main(["--check"]) == 2
    assert capsys.readouterr().err.startswith("setup: Python 9.9 to 9.9 is needed, and ")


@needs_make
def test_make_says_which_python_it_needs_where_the_commands_cannot_be_listed(fake_project):
    """The commands' own code is too new for an old Python: what checks it is not."""
    shutil.rmtree(fake_project / ".venv")
    old = fake_project / "old"
    old.write_text('#!/bin/sh\necho "asked: $*" >&2; exit 1\n')
    old.chmod(0o755)
    output, code = run_make("bench", f"PYTHON={old}", folder=fake_project)
    assert code == 2 and output.startswith("asked: -m bench.install.packages --check --venv .venv\n")


# --- The Makefile -------------------------------------------------------------------------------------------


def words_of(output: str) -> list[str]:
    """The words of the one command of `bench` that make would run."""
    start = "exec env BENCH_INSTALLS=1 .venv/bin/python -m bench "
    assert output.startswith(start) and output.count("\n") == 1, output
    return output.removeprefix(start).split()


@needs_make
def test_every_command_is_a_target_of_its_own(fake_project):
    for line in COMMANDS.values():
        if line.name != "help":
            output, code = run_make(line.name, folder=fake_project)
            assert code == 0 and words_of(output) == [line.name]


@needs_make
@pytest.mark.parametrize("name", [part.name for part in every() if " " in part.name])
def test_every_part_of_a_command_is_two_goals(fake_project, name):
    output, code = run_make(*name.split(), "PART=1", folder=fake_project)
    assert code == 0 and words_of(output.removesuffix(":\n")) == [*name.split(), '--part="$PART"']


@needs_make
@pytest.mark.parametrize(
    ("goals", "wrong"), [(["compare", "fly"], "fly"), (["fly"], "fly"), (["compare", "memory", "demo"], "demo")]
)
def test_a_word_that_is_no_target_and_no_part_is_refused(fake_project, goals, wrong):
    output, code = run_make(*goals, folder=fake_project)
    assert code == 2 and f"no target {wrong}" in output


def test_the_targets_that_are_no_command_are_in_the_table():
    """The Makefile has recipes for them, and the table has what their help says."""
    (own,) = re.findall(r"^OWN +:= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(own.split()) == {line.name for line in OF_MAKE} | {"help"}


BROKEN = """
import sys


class Finder:
    def find_spec(self, name, *rest):
        if name == "{}":
            raise ZeroDivisionError("this file is broken")


sys.meta_path.insert(0, Finder())
"""


@needs_make
@pytest.mark.parametrize("module", ["bench.studies.lab.study", "bench.mistakes.whole_data"])
def test_a_file_that_cannot_be_imported_is_shown_and_stops_only_the_commands(module, fake_project):
    (fake_project / "sitecustomize.py").write_text(BROKEN.format(module))
    python = fake_project / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{fake_project}:{ROOT}" exec "{sys.executable}" "$@"\n')
    shutil.rmtree(fake_project / "bench")
    for target in ("help", "bench"):
        output, code = run_make(target, f"PYTHON={python}", "VENV=none", folder=fake_project)
        assert code == 2 and "Traceback" in output and "ZeroDivisionError: this file is broken" in output
    output, code = run_make("clean", f"PYTHON={python}", "VENV=none", folder=fake_project)
    assert code == 0 and "Traceback" not in output


@needs_make
def test_make_passes_what_stands_on_its_command_line(fake_project):
    output, code = run_make("bench", "MODE=ddp", "GPUS=4", "IMAGE_SIZE=32", folder=fake_project)
    name, *flags = words_of(output)
    assert (name, code) == ("bench", 0)
    assert sorted(flags) == ['--gpus="$GPUS"', '--image-size="$IMAGE_SIZE"', '--mode="$MODE"']


@needs_make
def test_every_option_of_every_command_can_be_given_to_make(fake_project):
    flags = [flag_of(f) for f in FIELDS.values()]
    flags += [f"--{name}" for line in every() for name in line.positional]
    flags = sorted({*flags, *(flag for line in every() if line.name != "help" for flag in line.flags)})
    variables = [flag[2:].replace("-", "_").upper() for flag in flags]
    assert {variable_of(f) for f in FIELDS.values()} <= set(variables)
    output, code = run_make("bench", *(f"{name}=1" for name in variables), folder=fake_project)
    assert code == 0
    assert sorted(words_of(output)[1:]) == sorted(
        f'{flag}="${name}"' for flag, name in zip(flags, variables, strict=True)
    )


@needs_make
def test_make_ignores_the_environment(fake_project):
    output, code = run_make("bench", folder=fake_project, env={"MODE": "horovod", "SEED": "7"})
    assert code == 0 and words_of(output) == ["bench"]


@needs_make
def test_make_passes_any_value_unharmed(fake_project):
    value = """a$b $$ ${c};$(touch x) "q" 'r' & | `id` * #d"""
    command = ["make", "--no-print-directory", "bench", f"DATA={value}", "LR=-1"]
    lines = subprocess.check_output(command, cwd=fake_project, text=True, env=CLEAN).splitlines()
    assert lines[:3] == ["-m", "bench", "bench"]
    assert sorted(lines[3:]) == ["--data=" + value, "--lr=-1"]
    assert not (fake_project / "x").exists()


@needs_make
@pytest.mark.skipif(not LINUX, reason="a process is asked for its parent in /proc")
def test_a_command_is_makes_own_child(fake_project):
    """No shell is between them: the command ends with its parent."""
    python = fake_project / ".venv" / "bin" / "python"
    python.write_text(FAKE_PYTHON + "cat /proc/$PPID/comm\n")
    lines = subprocess.check_output(["make", "bench", "LR=-1"], cwd=fake_project, text=True, env=CLEAN).splitlines()
    assert lines[-2:] == ["--lr=-1", "make"]


def make_for_real(folder, *arguments, env=None) -> subprocess.CompletedProcess:
    """make, with the real command behind it."""
    (folder / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=CLEAN | (env or {}))


@needs_make
@pytest.mark.parametrize(
    ("arguments", "near"), [(["bench", "GPU=4"], ["GPUS="]), (["compare", "MODL=x"], ["MODEL=", "MODE="])]
)
def test_a_misspelt_variable_is_refused_by_the_command(fake_project, arguments, near):
    """Nothing is installed before it has read what it was given."""
    result = make_for_real(fake_project, *arguments)
    said = result.stderr.splitlines()[0]
    assert result.returncode == 2 and not result.stdout
    assert re.findall(r"[A-Z]+=", said) == [f"{arguments[1].partition('=')[0]}=", *near]


@needs_make
def test_a_variable_of_the_environment_is_said_to_be_not_used(fake_project):
    """Once, and not of what make was given, which is in the environment of its commands, too."""
    result = make_for_real(fake_project, "bench", "MODE=no", "SEED=1", env={"GPUS": "2", "SEED": "7", "PAGER": "less"})
    note, error, *_ = result.stderr.splitlines()
    assert note == (
        "bench: GPUS is an environment variable and is not used: options are given as in `make bench GPUS=…`"
    )
    assert error.startswith("bench: unknown MODE=no")


@needs_make
@pytest.mark.parametrize("target", ["setup", "lint", "clean", "help"])
def test_a_target_that_is_no_command_takes_no_variable(fake_project, target):
    output, code = run_make(target, "GPUS=4", folder=fake_project)
    assert code == 2 and "unknown variable GPUS" in output
    assert run_make(target, folder=fake_project)[1] == 0


@needs_make
def test_a_build_of_torch_is_asked_for_where_it_is_given(fake_project):
    """Although the environment says that it is ready: it may have the other build."""
    assert '--venv ".venv" --torch "cpu" --stamp' in run_make("setup", "TORCH=cpu", folder=fake_project)[0]
    output, code = run_make("bench", "TORCH=cuda", "GPUS=2", folder=fake_project)
    assert code == 0 and '--torch "cuda"' in output and output.split()[-2:] == ["bench", '--gpus="$GPUS"']
    for env in ({}, {"TORCH": "cpu"}):
        assert "--torch" not in run_make("bench", folder=fake_project, env=env)[0]


@needs_make
def test_make_help_is_the_commands_own():
    command = ["make", "--no-print-directory", "help", f"PYTHON={sys.executable}"]
    listed = [sys.executable, "-m", "bench", "help", "--make"]
    texts = [subprocess.check_output(each, cwd=ROOT, text=True, env=CLEAN) for each in (command, listed)]
    assert texts[0] == texts[1] and "make bench " in texts[0]


# --- Horovod, before a command of make that can use it ------------------------------------------------------


def provided(monkeypatch, *words, install=lambda **_: print("installed")) -> None:
    """What make's command does before it runs."""
    monkeypatch.setattr(horovod, "install", install)
    install_command.provide_horovod(COMMANDS[words[0]].parse(list(words[1:])))


@pytest.mark.parametrize(
    ("words", "looks"),
    [
        ("run", False),
        ("run --mode=ddp", False),
        ("run --mode=horovod", True),
        ("run --mode=hororod", False),  # refused in a moment
        ("sweep --mode=single", False),
        ("sweep --mode=horovod", True),
        ("compare", True),
        ("verify --gpus=2", True),
    ],
)
def test_only_what_can_use_horovod_looks_for_it(monkeypatch, capsys, words, looks):
    provided(monkeypatch, *words.split())
    out, err = capsys.readouterr()
    assert (out, "installed" in err) == ("", looks)  # the command's own output stays its own


def test_a_horovod_that_is_there_opens_no_command(monkeypatch, capsys):
    ready = SimpleNamespace(state="ready", ready=True, horovod="0.28.1", torch="2.14.1")
    monkeypatch.setattr(horovod, "status", lambda *_: ready)
    provided(monkeypatch, "compare", install=horovod.install)
    assert capsys.readouterr() == ("", "")
    horovod.install()
    assert "is installed and fits" in capsys.readouterr().out


def test_without_horovod_all_goes_on_but_what_is_of_horovod_alone(monkeypatch, capsys):
    def install(**_):
        raise BenchError("it cannot be built")

    provided(monkeypatch, "compare", install=install)
    assert "it cannot be built" in capsys.readouterr().err
    with pytest.raises(BenchError):
        provided(monkeypatch, "run", "--mode=horovod", install=install)


def test_only_make_has_a_command_install(monkeypatch, capsys):
    """`bench` alone installs nothing, unless it is asked to."""
    looked = []
    monkeypatch.setattr(install_command, "provide_horovod", looked.append)
    monkeypatch.delenv(cli.INSTALLS, raising=False)
    for looks in (0, 1):
        assert cli.main(["compare", "--model=nothing"]) == 2  # refused, after that
        assert len(looked) == looks and cli.INSTALLS not in os.environ  # nor does a command that it starts
        monkeypatch.setenv(cli.INSTALLS, "1")
    assert cli.main(["report", "nowhere"]) == 2 and len(looked) == 1  # which needs no Horovod


# --- The locked packages ------------------------------------------------------------------------------------

# Each says which of them was called with what; the environment's pip may bring uv, and uv may fail.
PIP = """#!/bin/sh
case "$*" in
  *"config list"*) printf "global.index-url='https://packages.test/simple'\\nglobal.cert='/a.pem'\\n"; exit 0 ;;
esac
echo "pip $*" >> "{log}"
case "$*" in *requirements-uv*) {fetch} ;; esac
"""
UV = '#!/bin/sh\necho "uv $* from $UV_DEFAULT_INDEX" >> "{log}"\nexit {code}\n'


@pytest.fixture
def calls_of(tmp_path, monkeypatch):
    """Installs a lock with a made-up pip and uv; gives the calls. fetched: pip can bring uv, which exits with code."""

    def calls(fetched: bool, code: int) -> list[str]:
        monkeypatch.setattr(environment, "STATE", tmp_path)
        monkeypatch.setattr(environment, "LOG", tmp_path / "setup.log")
        uv, log = tmp_path / "bin" / "uv", tmp_path / "calls"
        uv.parent.mkdir()
        (tmp_path / "ready-uv").write_text(UV.format(log=log, code=code))
        (tmp_path / "ready-uv").chmod(0o755)
        fetch = f"cp {tmp_path / 'ready-uv'} {uv}" if fetched else "exit 1"
        uv.with_name("python").write_text(PIP.format(log=log, fetch=fetch))
        uv.with_name("python").chmod(0o755)
        environment.install_lock(uv.with_name("python"), environment.NOTEBOOKS_LOCK, "installing")
        return log.read_text().splitlines()

    return calls


def test_uv_installs_the_lock_from_the_index_that_pip_was_told_of(calls_of, monkeypatch):
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    fetching, installing = calls_of(fetched=True, code=0)
    assert fetching.startswith("pip") and "--require-hashes" in fetching
    assert installing.startswith("uv pip install") and "--require-hashes" in installing
    assert str(environment.NOTEBOOKS_LOCK) in installing and installing.endswith("from https://packages.test/simple")


@pytest.mark.parametrize("fetched", [True, False])
def test_where_uv_cannot_be_had_or_fails_pip_installs_the_lock(calls_of, fetched):
    *_, last = calls_of(fetched, code=2)
    assert last.startswith("pip") and "--require-hashes" in last and str(environment.NOTEBOOKS_LOCK) in last


def test_uv_is_fetched_at_the_version_and_checksums_of_the_lock(calls_of, tmp_path):
    calls_of(fetched=True, code=0)
    name, *checksums = (tmp_path / "requirements-uv.txt").read_text().split()
    assert re.fullmatch(r"uv==[\d.]+", name) and [c for c in checksums if c != "\\"]
    assert all(re.fullmatch(r"--hash=sha256:\w{64}|\\", c) for c in checksums)


# --- Whose environment it is ----------------------------------------------------------------------------------------


def environment_of(folder: Path, clone: Path, editable: bool = True) -> Path:
    """What pip leaves of a clone in an environment."""
    info = folder / "lib" / "python3.11" / "site-packages" / "data_parallel_bench-0.1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (info / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": editable}}))
    return info


@pytest.mark.parametrize("words", [(), ("--notebooks",), ("--torch", "cpu")])
def test_the_environment_of_another_clone_is_left_as_it_is(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    monkeypatch.setattr(environment, "step", lambda *_: pytest.fail("something was changed"))
    monkeypatch.setattr(environment, "run_logged", lambda *_, **__: pytest.fail("something was changed"))
    other, theirs = tmp_path / "an other", tmp_path / "venv"
    (other / "bench" / "install").mkdir(parents=True)
    environment_of(theirs, other)
    assert environment.main(["--venv", str(theirs), *words]) == 2
    assert (
        capsys.readouterr().err
        == f"setup: {theirs} belongs to {other}: name another folder in VENV=, or remove it first\n"
    )


def test_an_environment_is_ours_where_its_clone_is_this_one_or_gone(tmp_path):
    environment.check_owner(tmp_path / "not there yet")
    info = environment_of(tmp_path / "ours", ROOT)
    environment.check_owner(tmp_path / "ours")
    environment_of(tmp_path / "moved", tmp_path / "gone")
    environment.check_owner(tmp_path / "moved")
    for text in ("", "[1]", "{}", '{"url": 3}', '{"url": "https://example.org/x"}'):
        (info / "direct_url.json").write_text(text)
        environment.check_owner(tmp_path / "ours")


def test_a_set_up_that_cannot_write_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    (tmp_path / "file").touch()
    assert environment.main(["--venv", str(tmp_path / "file")]) == 2
    assert "file is not a virtual environment" in capsys.readouterr().err
    monkeypatch.setattr(environment, "STATE", tmp_path / "file" / "state")
    assert environment.main(["--venv", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("setup: ") and said.count("\n") == 1 and "Not a directory" in said


def test_what_the_build_fetches_has_its_checksums(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(toolchain, "find_cmake", lambda: None)
    monkeypatch.setattr(horovod, "run_step", lambda command, *_: commands.append(command))
    horovod.find_or_fetch_cmake(tmp_path, tmp_path / "log", 0.0)
    assert "--require-hashes" in commands[0] and not any(word.startswith("cmake") for word in commands[0])
    version = re.search(r"^cmake==(\d+)\.(\d+)", horovod.CMAKE_LOCK.read_text(), re.MULTILINE)
    assert (int(version[1]), int(version[2])) >= (3, 21)
