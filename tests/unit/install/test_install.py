"""Setting up: names of wheels, detection, environments and messages. Nothing is downloaded or built here."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import __main__ as cli
from bench.cli import COMMANDS, all_commands
from bench.cli import install as install_command
from bench.config.fields import flag_of, variable_of
from bench.config.options import FIELDS
from bench.errors import BenchError
from bench.files import LINUX
from bench.install import horovod_install as horovod
from bench.install import horovod_status, toolchain, torch_build
from bench.install import packages as environment
from bench.install.logged import run_logged
from tests.runs import ROOT, refuses

INSTALL = horovod.install
COMPILER = shutil.which("g++") or shutil.which("clang++")
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
    locks = ("bench/install/requirements.lock", "bench/install/requirements-notebooks.lock")
    for name in ("pyproject.toml", *locks, ".venv/bin/python", ".venv/.ready", ".venv/.course"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    (tmp_path / ".venv/bin/python").write_text(FAKE_PYTHON)
    return tmp_path


@pytest.mark.parametrize(("torch", "kind", "simd", "label"), [
    ("2.14.1+cu130", "gloo", True, "torch2.14.1.cu130.gloo.avx"),
    ("2.14.1+cpu", "gloo", False, "torch2.14.1.cpu.gloo"),
    ("2.8.0a0+5228986c39.nv25.06", "nccl", True, "torch2.8.0a0.5228986c39.nv25.6.nccl.avx"),
])  # fmt: skip
def test_label_names_torch_kind_and_instructions(torch, kind, simd, label):
    assert horovod_status.version_label(torch, kind, simd) == label
    assert horovod_status.built_with(label)[0].lower() == kind  # and with MPI, too
    with_mpi = horovod_status.version_label(torch, kind, simd, mpi=True)
    assert with_mpi.startswith(label.removesuffix(".avx") + ".mpi") and "MPI" in horovod_status.built_with(with_mpi)


JUDGED = [  # (installed, asked for, AVX here, state, state where MPI is asked for)
    (None, "gloo", True, "missing", "missing"),
    ("0.28.1+torch2.14.1.cu130.gloo.avx", "gloo", True, "ready", "no mpi"),
    ("0.28.1+torch2.14.1.cu130.gloo.avx", "nccl", True, "no nccl", "no nccl"),
    ("0.28.1+torch2.14.1.cu130.gloo.avx", "gloo", False, "other cpu", "no mpi"),
    ("0.28.1+torch2.14.1.cpu.gloo.avx", "gloo", True, "other torch", "other torch"),
    ("0.28.1", "gloo", True, "unknown build", "unknown build"),
    ("0.28.1+torch2.14.1.cu130.nccl.avx.sm80.sm90", "nccl", True, "ready", "no mpi"),
    ("0.28.1+torch2.14.1.cu130.nccl.avx.sm80", "nccl", True, "other gpu", "no mpi"),
    ("0.28.1+torch2.14.1.cu130.nccl.avx.sm80", "gloo", True, "ready", "no mpi"),
    ("0.28.1+torch2.14.1.cu130.gloo.mpi.avx", "gloo", True, "ready", "ready"),
    ("0.28.1+torch2.14.1.cu130.nccl.mpi.avx.sm80", "nccl", True, "other gpu", "other gpu"),
]


@pytest.mark.parametrize(("installed", "kind", "simd", "state", "with_mpi"), JUDGED)
def test_state_of_an_installed_horovod(installed, kind, simd, state, with_mpi):
    """On a machine whose GPUs have compute capability 9.0."""
    for mpi, expected in ((False, state), (True, with_mpi)):
        assert horovod_status.judge(installed, "2.14.1+cu130", kind, simd, ("90",), mpi=mpi) == expected


@pytest.mark.parametrize(("text", "version", "cuda", "rocm"), [
    ("__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\n", "2.6.0+cu124", "12.4", None),
    ("__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n", "2.6.0+cpu", None, None),
    ("__version__ = '2.7.0+rocm6.3'\ncuda = None\nhip: str = '6.3.42'\n", "2.7.0+rocm6.3", None, "6.3.42"),
])  # fmt: skip
def test_torch_version_is_read_without_importing_torch(tmp_path, monkeypatch, text, version, cuda, rocm):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert (horovod_status.torch_version(), horovod_status.torch_rocm()) == ((version, cuda), rocm)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_cxx_standard_is_found_in_the_headers(tmp_path):
    (tmp_path / "ATen").mkdir()
    for number, standard in (("201402L", 14), ("202002L", 20)):
        (tmp_path / "ATen" / "ATen.h").write_text(GUARD.format(number, standard))
        assert toolchain.cxx_standard(COMPILER, [str(tmp_path)]) == standard
    (tmp_path / "ATen" / "ATen.h").write_text(GUARD.format("209901L", 99))
    with refuses(COMPILER, "C++99"):
        toolchain.cxx_standard(COMPILER, [str(tmp_path)])


def test_no_compiler_is_one_line(tmp_path, monkeypatch):
    """A real process whose PATH is empty, with a stand-in for torch, which it reads and does not import."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.99.0'\ncuda: Optional[str] = None\n")
    env = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "bench", "install", "horovod", "--force"]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    (last,) = result.stderr.strip().splitlines()
    assert result.returncode == 2 and last.startswith("bench: ") and "g++" in last and "bench install-horovod" in last
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses("mpicxx", "openmpi-bin"):
        toolchain.require_build_tools(mpi=True)


def test_gpu_kind_follows_the_gpu_and_the_torch(monkeypatch):
    for gpu, choice, cuda, kind in (
        (False, "auto", "13.0", "gloo"), (False, "nccl", "13.0", "nccl"), (True, "auto", "13.0", "nccl"),
        (True, "auto", None, "gloo"), (True, "none", "13.0", "gloo"),
    ):  # fmt: skip
        monkeypatch.setattr(horovod_status, "gpu_present", lambda gpu=gpu: gpu)
        assert horovod_status.wanted_kind(choice, cuda) == kind
    with refuses("--gpu none"):
        horovod_status.wanted_kind("nccl", None)
    monkeypatch.setattr(horovod_status, "torch_version", lambda: ("2.14.1+cu130", "13.0"))
    gpus = [SimpleNamespace(compute_capability=each) for each in ("10.0", "8.6", "8.6", None)]
    monkeypatch.setattr(horovod_status, "visible_gpus", lambda: gpus)
    assert horovod_status.status("here").label.endswith(".sm86.sm100")
    assert ".sm" not in horovod_status.status("nccl").label
    monkeypatch.setattr(horovod_status, "visible_gpus", lambda: [])
    with refuses("--gpu here", "--gpu nccl"):
        horovod_status.status("here")


@pytest.fixture
def gpu_build(tmp_path, monkeypatch):
    """``gpu_build(cuda, nvcc, archs, label)``: the variables of a build for a torch of this CUDA and sm_80, sm_90
    where an nvcc of that CUDA is on PATH; archs: what it compiles for, if told. ``.fetched``: what would be."""
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    for path in (nvcc, tmp_path / "toolkit" / "include" / "cuda_runtime.h"):
        path.parent.mkdir(parents=True)
        path.touch(0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(horovod, "INSTALLED", tmp_path / "nowhere")
    monkeypatch.setattr(horovod, "arrange_nccl", lambda folder: None)
    monkeypatch.setattr(horovod, "arrange_toolkit", lambda folder: folder)
    monkeypatch.setattr(horovod, "run_step", lambda command, *_: build.fetched.append(command))

    def build(cuda: str, installed: str, archs: str = "", label: str = "torch2.14.1.cu130.nccl.avx") -> dict:
        listed = f"printf '%s\\n' {archs}; exit 0" if archs else "exit 1"
        version = f"echo 'Cuda compilation tools, release {installed}, V{installed}.131'"
        nvcc.write_text(f"#!/bin/sh\n[ $1 = --list-gpu-arch ] && {{ {listed}; }}\n{version}\n")
        facts = FACTS | {"cuda": cuda, "archs": "sm_80 sm_90"}
        return horovod.gpu_environment(facts, label, tmp_path, tmp_path / "log", time.monotonic() + 60)

    build.fetched, build.home = [], str(tmp_path / "toolkit")
    return build


def test_an_installed_nvcc_that_fits_is_preferred_to_wheels(gpu_build):
    """Wheels come by network, of CUDA 13 alone. An nvcc of another major version does not fit."""
    assert gpu_build("13.0", "13.2")["HOROVOD_CUDA_HOME"] == gpu_build.home
    assert gpu_build("12.6", "12.4")["HOROVOD_CUDA_HOME"] == gpu_build.home and not gpu_build.fetched
    assert gpu_build("13.0", "12.4")["HOROVOD_CUDA_HOME"] != gpu_build.home
    assert "nvidia-cuda-nvcc==13.0.*" in gpu_build.fetched[0]
    with refuses("nvcc", "CUDA 11"):
        gpu_build("11.8", "12.4")


@pytest.mark.parametrize(("archs", "more", "listed"), [
    ("", "", "80,90"),  # it does not say: all of torch's
    ("", ".sm90", "90"),
    ("compute_70 compute_80 compute_86 compute_90", "", "80,90"),
    ("compute_70 compute_80", "", "80"),  # and the driver translates it for 9.0
    ("compute_80 compute_90", ".sm120", "90"),
])  # fmt: skip
def test_only_what_the_installed_nvcc_has_is_compiled(gpu_build, archs, more, listed):
    """It may be older than the one that torch was compiled with."""
    env = gpu_build("13.0", "13.0", archs, f"torch2.14.1.cu130.nccl.avx{more}")
    assert env["HOROVOD_BUILD_CUDA_CC_LIST"] == listed
    with refuses("nvcc", "sm_80, sm_90"):
        gpu_build("13.0", "13.0", "compute_100")


FACTS = {"version": "2.14.1+cu130", "cuda": "13.0", "abi": True, "lib": "/t/lib", "include": ["/t/i"], "archs": ""}


def test_the_environment_of_a_build():
    given = {"facts": FACTS, "compiler": "/usr/bin/g++", "cmake": "/usr/bin/cmake", "standard": 20, "simd": ("-mavx",),
             "jobs": 3, "work": Path("/w")}  # fmt: skip
    caller = {"HOME": "/h", "HOROVOD_GPU": "ROCM", "MAKEFLAGS": "w"}
    gpu = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": "/c"}
    env = horovod.build_environment(caller, **given, label="torch2.14.1.gloo", gpu={})
    on_gpu = horovod.build_environment(caller, **given, label="torch2.14.1.gloo.mpi", gpu=gpu)
    assert env.items() >= {
        "HOME": "/h", "MAKEFLAGS": "-j3", "BENCH_CXX_STANDARD": "20", "BENCH_TORCH_ABI": "TRUE",
        "BENCH_TORCH_LIBRARIES": "c10;torch;torch_cpu;torch_python", "HOROVOD_LOCAL_VERSION": "torch2.14.1.gloo",
    }.items()  # fmt: skip
    assert not {"HOROVOD_GPU", *gpu, "HOROVOD_WITH_MPI"} & set(env) and Path(env["CMAKE_TOOLCHAIN_FILE"]).exists()
    assert on_gpu["HOROVOD_WITH_MPI"] == "1" and "HOROVOD_WITHOUT_MPI" not in on_gpu
    assert on_gpu["HOROVOD_GPU_OPERATIONS"] == "NCCL" and on_gpu["BENCH_TORCH_INCLUDE"].endswith(";/c/include")
    assert on_gpu["BENCH_TORCH_LIBRARIES"].endswith("c10_cuda;torch_cuda")
    texts = [path.read_text() for path in horovod.OVERLAY.iterdir()]
    used = set(re.findall(r"ENV\{(\w+)\}", "".join(texts)))
    assert len(texts) == 3 and used <= set(on_gpu)  # the overlay reads no others


@pytest.mark.parametrize(("output", "reason"), [
    ("x.cc:1:2: error: first\nx.cc:9:9: error: second\nmake: *** [all] Error 2", "x.cc:1:2: error: first"),
    ("/usr/bin/python: No module named pip", "pip"),
    ("nvcc fatal   : Unsupported gpu architecture 'compute_120'\nERROR: Failed building wheel", "--gpu here"),
    ("nvcc fatal   : Unknown option\nERROR: Failed building wheel for horovod", "nvcc fatal   : Unknown option"),
    ("something\nthe end\n", "the end"),
])  # fmt: skip
def test_a_failed_step_is_explained(output, reason):
    assert reason in horovod.explain_failure(output)


def test_run_logged_ends_the_whole_family_at_the_limit(tmp_path):
    log = tmp_path / "log"
    assert run_logged([sys.executable, "-c", "import sys; print('[ 50%] half'); sys.exit(3)"], log, "trying") == 3
    assert "[ 50%] half" in log.read_text()
    script = "import subprocess; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
    with pytest.raises(TimeoutError):
        run_logged([sys.executable, "-c", script], log, "trying", deadline=time.monotonic() + 1)
    grandchild = int(log.read_text().splitlines()[-1])
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_the_manual_names_the_oldest_torch_and_the_wheels_of_a_machine_without_an_index(monkeypatch):
    """All but torch and torchvision, which such a machine has."""
    oldest = ".".join(map(str, torch_build.OLDEST))
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    readme, manual = ((ROOT / page).read_text() for page in ("README.md", "tutorials/manual/where_it_runs.md"))
    for page in (readme, manual):
        assert set(re.findall(r"torch (\S+) or newer", page)) == {oldest}
    monkeypatch.setattr(environment, "_version", lambda name: "1" if name.startswith("torch") else "")
    needed = [re.split(r"[<>=]", line)[0] for line in environment.missing_requirements([])]
    assert re.findall(r"pip download --dest wheels (.*)", manual) == [" ".join(sorted(needed))]
    monkeypatch.setattr(environment, "_version", lambda name: "" if name in ("rich", "pre-commit") else "1")
    assert [line.split(">")[0] for line in environment.missing_requirements(["dev"])] == ["rich", "pre-commit"]


def refused(capsys, *words: str) -> str:
    assert environment.main([*words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("setup: ") and said.count("\n") == 1
    return said


def test_a_python_or_a_torch_that_is_too_old_is_told_so(capsys, monkeypatch):
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    assert environment.main(["--check"]) == 0
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", ((9, 9),))
    assert "9.9" in refused(capsys, "--check")
    monkeypatch.setattr(environment, "_version", lambda name: "2.6.0+cu124")
    assert "torch 2.6.0+cu124" in refused(capsys, "--venv", "none")


@needs_make
def test_make_asks_an_old_python_which_one_it_needs(fake_project):
    """The commands' own code is too new for it: what checks it is not."""
    shutil.rmtree(fake_project / ".venv")
    old = fake_project / "old"
    old.write_text('#!/bin/sh\necho "asked: $*" >&2; exit 1\n')
    old.chmod(0o755)
    output, code = run_make("bench", f"PYTHON={old}", folder=fake_project)
    assert code == 2 and output.startswith("asked: -m bench.install.packages --check --venv .venv\n")


@needs_make
def test_every_command_every_part_and_every_option_can_be_given_to_make(fake_project):
    """Names come from the table; some are asked for."""
    listed = subprocess.check_output([sys.executable, "-m", "bench", "help", "--targets"], cwd=ROOT, text=True).split()
    names = {name.removesuffix("+course") for name in listed}
    assert names >= {line.name for line in COMMANDS.values() if line.name != "help"}
    assert names >= {part.name.replace(" ", "/") for part in all_commands() if " " in part.name}
    flags = [flag_of(f) for f in FIELDS.values()]
    flags += [f"--{name}" for line in all_commands() for name in line.positional]
    flags = sorted({*flags, *(flag for line in all_commands() if line.name != "help" for flag in line.flags)})
    variables = [flag[2:].replace("-", "_").upper() for flag in flags]
    assert {variable_of(f) for f in FIELDS.values()} <= set(variables)
    expected = [f'{flag}="${name}"' for flag, name in zip(flags, variables, strict=True)]
    for words in (["bench"], ["compare", "scaling"]):
        output, code = run_make(*words, *(f"{name}=1" for name in variables), folder=fake_project)
        start = f"exec env BENCH_INSTALLS=1 .venv/bin/python -m bench {' '.join(words)} "
        (line,) = output.removesuffix(":\n").splitlines()
        assert code == 0 and line.startswith(start)
        assert sorted(line.removeprefix(start).split()) == sorted(expected)
    for goals in (["compare", "fly"], ["fly"], ["compare", "memory", "demo"]):
        output, code = run_make(*goals, folder=fake_project)
        assert code == 2 and goals[-1] in output
    for target in ("setup", "clean", "help"):  # no command takes no variable
        output, code = run_make(target, "GPUS=4", folder=fake_project)
        assert code == 2 and "GPUS" in output
        assert run_make(target, folder=fake_project)[1] == 0


@needs_make
@pytest.mark.skipif(not LINUX, reason="a process is asked for its parent in /proc")
def test_any_value_reaches_the_command_which_is_makes_own_child(fake_project):
    """No shell is between them: the command ends with its parent. What is in the environment is not passed."""
    value = """a$b $$ ${c};$(touch x) "q" 'r' & | `id` * #d"""
    python = fake_project / ".venv" / "bin" / "python"
    python.write_text(FAKE_PYTHON + "cat /proc/$PPID/comm\n")
    command = ["make", "--no-print-directory", "bench", f"DATA={value}", "LR=-1"]
    env = CLEAN | {"MODE": "horovod", "SEED": "7"}
    lines = subprocess.check_output(command, cwd=fake_project, text=True, env=env).splitlines()
    assert lines[:3] == ["-m", "bench", "bench"] and lines[-1] == "make"
    assert sorted(lines[3:-1]) == ["--data=" + value, "--lr=-1"]
    assert not (fake_project / "x").exists()


@needs_make
@pytest.mark.parametrize(("words", "env", "values"), [
    (["bench", "GPU=4"], {}, [["GPU=", "GPUS="]]),
    # of what make was given it is not said, though it is in the environment of its commands, too
    (["bench", "MODE=no", "SEED=1"], {"GPUS": "2", "SEED": "7", "PAGER": "less"}, [["GPUS="], ["MODE=no"]]),
])  # fmt: skip
def test_variables_that_are_misspelt_or_not_used_are_named_by_the_command(fake_project, words, env, values):
    """Nothing is installed before it has read what it was given."""
    python = fake_project / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    command = ["make", "--no-print-directory", *words]
    result = subprocess.run(command, cwd=fake_project, capture_output=True, text=True, env=CLEAN | env)
    assert result.returncode == 2 and not result.stdout
    for line, named in zip(result.stderr.splitlines(), values, strict=False):
        assert line.startswith("bench: ") and all(name in line for name in named)
        assert "SEED" not in line and "PAGER" not in line


@needs_make
def test_a_build_of_torch_is_asked_for_where_it_is_given(fake_project):
    """Although the environment says that it is ready: it may have the other build."""
    assert '--venv ".venv" --torch "cpu" --stamp' in run_make("setup", "TORCH=cpu", folder=fake_project)[0]
    output, code = run_make("bench", "TORCH=cuda", "GPUS=2", folder=fake_project)
    assert code == 0 and '--torch "cuda"' in output and output.split()[-2:] == ["bench", '--gpus="$GPUS"']
    for env in ({}, {"TORCH": "cpu"}):
        assert "--torch" not in run_make("bench", folder=fake_project, env=env)[0]


def provided(monkeypatch, words: str, install=lambda **_: print("installed")) -> None:
    monkeypatch.setattr(horovod, "install", install)
    name, *flags = words.split()
    install_command.provide_horovod(COMMANDS[name].parse(flags))


def test_only_what_can_use_horovod_looks_for_it(monkeypatch, capsys):
    def install(**_):
        raise BenchError("it cannot be built")

    for words in ("run --mode=horovod", "sweep --mode=horovod", "compare", "verify --gpus=2"):
        provided(monkeypatch, words)
        out, err = capsys.readouterr()
        assert out == "" and "installed" in err, words  # the command's own output stays its own
    for words in ("run", "run --mode=ddp", "run --mode=hororod", "sweep --mode=single"):
        provided(monkeypatch, words)
        assert capsys.readouterr() == ("", ""), words
    ready = SimpleNamespace(state="ready", ready=True, horovod="0.28.1", torch="2.14.1")
    with monkeypatch.context() as patch:
        patch.setattr(horovod, "status", lambda *_: ready)
        provided(monkeypatch, "compare", install=INSTALL)
    assert capsys.readouterr() == ("", "")
    provided(monkeypatch, "compare", install)  # everything continues except what needs Horovod
    assert "it cannot be built" in capsys.readouterr().err
    with pytest.raises(BenchError):
        provided(monkeypatch, "run --mode=horovod", install)


def test_only_make_has_a_command_install(monkeypatch):
    """`bench` alone installs nothing, unless it is asked to."""
    looked = []
    monkeypatch.setattr(install_command, "provide_horovod", looked.append)
    monkeypatch.delenv(cli.INSTALLS, raising=False)
    for looks in (0, 1):
        assert cli.main(["compare", "--replay=magic"]) == 2  # refused, after that
        assert len(looked) == looks and cli.INSTALLS not in os.environ  # nor does a command that it starts
        monkeypatch.setenv(cli.INSTALLS, "1")
    assert cli.main(["report", "nowhere"]) == 2 and len(looked) == 1  # which needs no Horovod


def test_the_environment_of_another_clone_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    """One is ours where its clone is this one, or gone. What pip leaves of a clone in it says so."""
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    monkeypatch.setattr(environment, "step", lambda *_: pytest.fail("something was changed"))
    monkeypatch.setattr(environment, "run_logged", lambda *_, **__: pytest.fail("something was changed"))
    other, venv = tmp_path / "an other", tmp_path / "venv"
    (other / "bench" / "install").mkdir(parents=True)
    info = venv / "lib" / "python3.11" / "site-packages" / "data_parallel_bench-0.1.0.dist-info"
    environment.check_owner(venv)  # not there yet
    info.mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    for text in ("", "[1]", "{}", '{"url": 3}', '{"url": "https://example.org/x"}'):
        (info / "direct_url.json").write_text(text)
        environment.check_owner(venv)
    for clone in (ROOT, tmp_path / "gone", other):
        (info / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
        if clone != other:
            environment.check_owner(venv)
    for words in ((), ("--notebooks",), ("--torch", "cpu")):
        said = refused(capsys, "--venv", str(venv), *words)
        assert str(venv) in said and str(other) in said and "VENV=" in said


def test_a_set_up_that_cannot_write_is_one_line(tmp_path, monkeypatch, capsys):
    """Nor does it touch a folder that is not an environment."""
    monkeypatch.setattr(environment, "LOCKED_PYTHONS", (sys.version_info[:2],))
    (tmp_path / "folder").mkdir()
    for taken in (tmp_path / "file", tmp_path / "folder" / "thesis.txt"):
        taken.touch()
    for place in ("file", "folder"):
        assert str(tmp_path / place) in refused(capsys, "--venv", str(tmp_path / place))
    assert (tmp_path / "folder" / "thesis.txt").exists()
    monkeypatch.setattr(environment, "STATE", tmp_path / "file" / "state")
    refused(capsys, "--venv", str(tmp_path / "new"))
