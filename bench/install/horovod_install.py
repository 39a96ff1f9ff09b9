"""`bench install-horovod`: keep the installed Horovod if it fits, else install the cached wheel, or compile one (2-4
minutes) from the unchanged source. Its last release predates torch 2.1: `overlay/` tells CMake what changed since, a
newer C++ standard, CUDA in wheels, and CMake 4's policy."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from bench import files
from bench.errors import BenchError, UserError
from bench.install import horovod_status, toolchain
from bench.install.horovod_status import IMPORT_S, Status, archs_of, cache_dir, status
from bench.install.logged import run_logged
from bench.process.tree import capture

SDIST = f"horovod-{horovod_status.VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
OVERLAY = Path(__file__).parent / "overlay"
CMAKE_LOCK = Path(__file__).with_name("requirements-cmake.lock")
# What Horovod declares, setuptools for the distutils that its runner imports, and wheel for the build.
NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "setuptools", "wheel")
REST_WORKS = "everything but MODE=horovod works"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "2")
# The parts of the CUDA toolkit that the build uses, as wheels. Before CUDA 13 the nvcc wheel held no nvcc.
TOOLKIT_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
FIRST_CUDA_WITH_WHEELS = 13
INSTALLED = Path("/usr/local")  # where NVIDIA's own packages put a toolkit
TRIAL_S = 60.0  # for nvcc to answer
CHECK = "import horovod.torch as hvd; print(int(hvd.gloo_built()), int(hvd.nccl_built()))"
TORCH_FACTS = """
import json, os, torch
root = os.path.dirname(torch.__file__)
include = os.path.join(root, "include")
arch_flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "abi": torch.compiled_with_cxx11_abi(),
    "lib": os.path.join(root, "lib"),
    "include": [include, os.path.join(include, "torch", "csrc", "api", "include")],
    "archs": arch_flags() or "",
}))
"""


def install(
    gpu: str = "auto", force: bool = False, wheel_dir: str | None = None, jobs: int | None = None,
    timeout: float = 1800, mpi: bool = False, quiet: bool = False,
) -> None:  # fmt: skip
    """Install Horovod if needed. Raises UserError or BenchError. gpu: "auto", "none", "nccl" or "here". force: build
    again. wheel_dir: only build, and copy the wheel there. jobs: parallel compilers. timeout: seconds. mpi: with MPI.
    quiet: print nothing if it fits already."""
    now = status(gpu, mpi)
    if now.state == "no torch":
        raise UserError(f"torch is not installed for {sys.executable}: run `make setup`, or install torch")
    if not (force or wheel_dir) and is_usable(now, mpi):
        if not quiet:
            print(f"horovod {now.horovod} is installed and fits torch {now.torch}")
        return
    deadline = time.monotonic() + timeout
    with _build_lock(deadline):
        wheel = None if force else horovod_status.cached_wheel(now.label)
        if wheel_dir:
            print(f"wheel: {_copy_to(wheel or build(now, jobs, deadline), wheel_dir)}")
            return
        if wheel and not _install_and_check(wheel):  # built on a machine unlike this one: build it here
            wheel.unlink()
            wheel = None
        if wheel is None and not _install_and_check(build(now, jobs, deadline)):
            raise BenchError(f"Horovod was built but cannot be imported: {import_error()}; {REST_WORKS}")
    print(f"horovod {horovod_status.installed_version()} is installed and fits torch {now.torch}")


def is_usable(now: Status, mpi: bool) -> bool:
    """A foreign build is kept if it can be imported, and has MPI if that is wanted."""
    foreign = now.state == "unknown build"
    return now.ready or (foreign and import_error() is None and (not mpi or horovod_status.mpi_built()))


def import_error() -> str | None:
    """The error of importing Horovod in a fresh process; None if it works and has Gloo."""
    with tempfile.TemporaryDirectory() as nowhere:
        result = capture([sys.executable, "-W", "ignore", "-c", CHECK], IMPORT_S, cwd=nowhere)
    if result.code == 0 and result.out.strip().startswith("1 "):
        return None
    if result.code is None:
        return f"its import does not end within {IMPORT_S:g} s"
    return (result.err or result.out).strip().rpartition("\n")[2] or f"exit code {result.code}"


def _copy_to(wheel: Path, folder: str) -> Path:
    target = Path(folder).expanduser().resolve() / wheel.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(target) as partial:
            shutil.copyfile(wheel, partial)
    except OSError as error:
        raise UserError(f"cannot write to {target.parent}: {error.strerror}; the wheel is {wheel}") from None
    return target


def _install_and_check(wheel: Path) -> bool:
    log = cache_dir() / "logs" / "install.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    soon = time.monotonic() + 600
    install_missing(log, soon)
    command = [*PIP, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    run_step(command, log, "installing the wheel", soon)
    importlib.invalidate_caches()
    return import_error() is None


def _build_lock(deadline: float) -> contextlib.ExitStack:
    path = cache_dir() / "build.lock"
    over = UserError(f"another build has locked {path} and did not end in time: try again")
    lock, waiting = contextlib.ExitStack(), "another Horovod build is running: waiting for it"
    try:
        lock.enter_context(files.locked(path, deadline, over, lambda: print(waiting, flush=True)))
    except OSError as error:
        raise UserError(f"cannot write to {path.parent} ({error.strerror}): set XDG_CACHE_HOME to a folder") from None
    return lock


# --- building ---------------------------------------------------------------------------------------------------------


def build(now: Status, jobs: int | None, deadline: float) -> Path:
    """The wheel's path in the cache. Raises UserError or BenchError with the remedy."""
    compiler = toolchain.find_compiler()
    toolchain.require_build_tools(mpi=".mpi" in now.label)
    jobs = jobs or toolchain.default_jobs()
    log = cache_dir() / "logs" / f"horovod-{now.label}-py{sys.version_info.major}.{sys.version_info.minor}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with work_folder() as work:
        install_missing(log, deadline)
        sdist = fetch_sdist(work, log, deadline)
        cmake = find_or_fetch_cmake(work, log, deadline)
        facts = torch_facts()
        abi_flag = f"-D_GLIBCXX_USE_CXX11_ABI={facts['abi']:d}"
        standard = toolchain.cxx_standard(compiler, facts["include"], abi_flag)
        gpu = gpu_environment(facts, now.label, work, log, deadline) if ".nccl" in now.label else {}
        env = build_environment(
            dict(os.environ), facts=facts, label=now.label, compiler=compiler, cmake=cmake, standard=standard,
            simd=toolchain.simd_flags(), jobs=jobs, work=work, gpu=gpu,
        )  # fmt: skip
        how = f"C++{env['BENCH_CXX_STANDARD']}, {' and '.join(horovod_status.built_with(now.label))}"
        print(f"Horovod {horovod_status.VERSION} for torch {now.torch}: {how}; log: {log}", flush=True)
        command = [*PIP, "--no-cache-dir", "wheel", "-v", "--no-deps", "--no-build-isolation", "--use-pep517"]
        command += ["-w", str(work / "wheel"), str(sdist)]
        run_step(command, log, f"compiling Horovod, {jobs} at a time", deadline, env)
        wheel = next((work / "wheel").glob("*.whl"))
        kept = cache_dir() / "wheels" / wheel.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.replace(wheel, kept)  # within one file system: complete or not there
        return kept


@contextlib.contextmanager
def work_folder():
    root = cache_dir() / "work"
    shutil.rmtree(root, ignore_errors=True)  # a killed build's; we hold the lock
    (root / "tmp").mkdir(parents=True)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def torch_facts() -> dict:
    """What a C++ build needs to know about torch, from a fresh process."""
    result = capture([sys.executable, "-W", "ignore", "-c", TORCH_FACTS], IMPORT_S)
    if result.code != 0:
        reason = result.err.strip().rpartition("\n")[2] or f"no answer within {IMPORT_S:g} s"
        raise UserError(f"torch is installed but cannot be imported: {reason}; fix that first")
    return json.loads(result.out.strip().rpartition("\n")[2])


def build_environment(base: dict, *, facts, label, compiler, cmake, standard, simd, jobs, work, gpu) -> dict:
    """The caller's variables for Horovod, CMake or make are dropped: they steer other builds."""
    other = ("HOROVOD_", "CMAKE_", "BENCH_", "MAKE", "MFLAGS")
    env = {name: value for name, value in base.items() if not name.startswith(other)}
    libraries = ["c10", "torch", "torch_cpu", "torch_python"]
    include = [*facts["include"], sysconfig.get_paths()["include"]]
    if gpu:
        libraries += ["c10_cuda", "torch_cuda"]
        include += [gpu["HOROVOD_CUDA_HOME"] + "/include"]
    return env | {
        "CMAKE_TOOLCHAIN_FILE": str(OVERLAY / "toolchain.cmake"),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses Gloo's project file without it
        "CXX": compiler,
        "HOROVOD_CMAKE": cmake,
        "HOROVOD_LOCAL_VERSION": label,
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if ".mpi" in label else "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_BUILD_ARCH_FLAGS": " ".join(simd) or "-DBENCH_NO_SIMD",  # empty would mean: choose yourself
        "MAKEFLAGS": f"-j{jobs}",
        "TMPDIR": str(work / "tmp"),  # pip's copies go with the work folder, however this ends
        "BENCH_CXX_STANDARD": str(standard),
        "BENCH_TORCH_VERSION": facts["version"],
        "BENCH_TORCH_ABI": "TRUE" if facts["abi"] else "FALSE",
        "BENCH_TORCH_INCLUDE": ";".join(include),
        "BENCH_TORCH_LIB": facts["lib"],
        "BENCH_TORCH_LIBRARIES": ";".join(libraries),
        **gpu,
    }


def fetch_sdist(work: Path, log: Path, deadline: float) -> Path:
    """Horovod's source from the cache or pip; both are checked against the checksum."""
    kept = cache_dir() / SDIST
    if kept.exists() and hashlib.sha256(kept.read_bytes()).hexdigest() == SDIST_SHA256:
        return kept
    wanted = work / "requirement.txt"
    wanted.write_text(f"horovod=={horovod_status.VERSION} --hash=sha256:{SDIST_SHA256}\n")
    command = [*PIP, "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    env = os.environ | {"TMPDIR": str(work / "tmp")}
    env.pop("HOROVOD_LOCAL_VERSION", None)  # it would change the version that pip reads, and pip would refuse it
    run_step([*command, "-r", str(wanted), "-d", str(work)], log, f"downloading {SDIST}", deadline, env)
    os.replace(work / SDIST, kept)
    return kept


def find_or_fetch_cmake(work: Path, log: Path, deadline: float) -> str:
    """From this environment or machine, or a wheel for this build only."""
    if found := toolchain.find_cmake():
        return found
    command = [*PIP, "install", "--target", str(work / "cmake"), "--require-hashes", "-r", str(CMAKE_LOCK)]
    run_step(command, log, "fetching CMake", deadline)
    return str(work / "cmake" / "cmake" / "data" / "bin" / "cmake")


# --- CUDA -------------------------------------------------------------------------------------------------------------


def gpu_environment(facts: dict, label: str, work: Path, log: Path, deadline: float) -> dict:
    """Variables for a build with NCCL. nvcc: the installed one if it fits, else from wheels (network)."""
    home, version = system_toolkit(facts["cuda"]), facts["cuda"]
    if home is None and int(version.split(".")[0]) < FIRST_CUDA_WITH_WHEELS:
        remedy = f"install CUDA toolkit {version} and set CUDA_HOME, or {horovod_status.FOR_CPU_ONLY}"
        raise UserError(f"no nvcc for CUDA {version.split('.')[0]} found: {remedy}")
    if home is None:
        folder = work / "cuda"
        wheels = [f"{name}=={version}.*" for name in TOOLKIT_WHEELS]
        command = [*PIP, "install", "--no-deps", "--target", str(folder), *wheels]
        run_step(command, log, f"fetching nvcc for CUDA {version}", deadline)
        home = arrange_toolkit(folder)
    nccl = arrange_nccl(work / "nccl")
    archs = archs_of(label) or re.findall(r"\bsm_(\d+)\b", facts["archs"])  # as in "sm_75 sm_90a compute_120"
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(home),
        "CUDA_HOME": str(home),
        "HOROVOD_NCCL_LINK": "SHARED",
        "NVCC_APPEND_FLAGS": "-std=c++17",  # Horovod asks for C++11, which GCC 14's headers and CUDA 13 do not take
        "HOROVOD_BUILD_CUDA_CC_LIST": arch_list(archs, home / "bin" / "nvcc"),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        **({"HOROVOD_NCCL_HOME": str(nccl)} if nccl else {}),
    }


def system_toolkit(torch_cuda: str) -> Path | None:
    """A toolkit of torch's CUDA major version with headers: CUDA_HOME's, PATH's, or /usr/local's."""
    on_path = shutil.which("nvcc")
    homes = [Path(home)] if (home := os.environ.get("CUDA_HOME")) else []
    homes += [Path(on_path).resolve().parents[1]] if on_path else []
    for home in (*homes, INSTALLED / f"cuda-{torch_cuda}", INSTALLED / "cuda"):
        nvcc = home / "bin" / "nvcc"
        if (home / "include" / "cuda_runtime.h").exists() and nvcc.exists():
            found = re.search(r"release (\d+)\.", capture([str(nvcc), "--version"], TRIAL_S).out)
            if found and found[1] == torch_cuda.split(".")[0]:
                return home
    return None


def arrange_toolkit(folder: Path) -> Path:
    """Give unpacked wheels the layout of a toolkit: the names for the linker and for CMake. Returns its root."""
    root = next((folder / "nvidia").glob("cu[0-9]*"))
    runtime = next((root / "lib").glob("libcudart.so.*"))
    (root / "lib" / "libcudart.so").symlink_to(runtime.name)
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")
    return root


def arrange_nccl(folder: Path) -> Path | None:
    """Headers and library of torch's own NCCL; None without one."""
    for entry in sys.path:
        nccl = Path(entry or ".") / "nvidia" / "nccl"
        library = nccl / "lib" / "libnccl.so.2"
        if library.exists():
            (folder / "lib").mkdir(parents=True)
            (folder / "include").symlink_to(nccl.resolve() / "include")
            (folder / "lib" / "libnccl.so").symlink_to(library.resolve())
            return folder
    return None


def arch_list(wanted: list[str], nvcc: Path) -> str:
    """The ``wanted`` GPU generations ("80", "90") that this nvcc supports. Horovod adds PTX for the highest, so newer
    GPUs work, too. Raises UserError if none works."""
    has = []  # nvcc may not say
    with contextlib.suppress(OSError):
        has = re.findall(r"^compute_(\d+)$", capture([str(nvcc), "--list-gpu-arch"], TRIAL_S).out, re.MULTILINE)
    wanted = wanted or has
    found = [arch for arch in wanted if arch in has or not has]
    older = [arch for arch in has if int(arch) < min(map(int, wanted))]
    if not found and not older:
        remedy = f"install a newer CUDA toolkit and set CUDA_HOME, or {horovod_status.FOR_CPU_ONLY}"
        raise UserError(f"{nvcc} cannot compile for torch's GPUs (sm_{', sm_'.join(wanted)}): {remedy}")
    return ",".join(found or [max(older, key=int)])


# --- steps of one command each ----------------------------------------------------------------------------------------


def run_step(command: list[str], log: Path, title: str, deadline: float, env: dict | None = None) -> None:
    """Run and log one command. Raises BenchError with the first error line and the log's path."""
    start = log.stat().st_size if log.exists() else 0
    try:
        code = run_logged(command, log, title, env=env, deadline=deadline)
    except TimeoutError:
        raise UserError(f"time limit reached while {title}; {REST_WORKS}; use a larger --timeout; log: {log}") from None
    if code != 0:
        with open(log, errors="replace") as file:
            file.seek(start)
            raise BenchError(f"{title} failed: {explain_failure(file.read())}; {REST_WORKS}; log: {log}")


def explain_failure(output: str) -> str:
    """Why a step failed: a known cause, its first error, or its last line.

    >>> explain_failure("Could not fetch\\nERROR: No matching distribution found for horovod==0.28.1")
    'no package found (is there a network? else set PIP_FIND_LINKS to a folder that holds the files)'
    """
    if "No module named pip" in output:
        return f"{sys.executable} has no pip (run `{sys.executable} -m ensurepip`)"
    if re.search(r"No matching distribution|NewConnectionError|name resolution", output):
        return "no package found (is there a network? else set PIP_FIND_LINKS to a folder that holds the files)"
    if "externally-managed-environment" in output:
        return "pip may not install into this system's Python (use the project's own environment: `make setup`)"
    first = toolchain.first_error(output)
    if "Unsupported gpu architecture" in output:
        return f"{first} (`bench install-horovod --gpu here` compiles only for the GPUs of this machine)"
    lines = [line for line in output.splitlines() if line.strip()]
    return first or (lines[-1].strip()[:300] if lines else "no output")


def install_missing(log: Path, deadline: float) -> None:
    """Packages that are installed keep their version."""
    if missing := [name for name in NEEDS if not horovod_status.installed_version(name)]:
        run_step([*PIP, "install", *missing], log, f"installing {' '.join(missing)}", deadline)
        importlib.invalidate_caches()
