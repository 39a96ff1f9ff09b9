"""Compile Horovod from its untouched source distribution for the torch that is installed (2-4 minutes).

Horovod's last release predates torch 2.1. Since then torch's headers need a newer C++ standard, CUDA comes in wheels
instead of a toolkit, CMake 4 refuses old project files, and GCC 13 and 14 refuse code that older ones took. The files in
`overlay/` tell CMake what to do instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from bench.errors import UserError
from bench.install import cuda, toolchain
from bench.install.horovod_status import IMPORT_S, VERSION, Status, archs_of, built_with, cache_dir
from bench.install.steps import PIP, install_missing, run_step
from bench.process.tree import capture

SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
OVERLAY = Path(__file__).parent / "overlay"
CMAKE_LOCK = Path(__file__).with_name("requirements-cmake.lock")
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


def build(now: Status, jobs: int | None, deadline: float) -> Path:
    """Returns the wheel's place in the cache. Raises UserError or BenchError, which name the remedy."""
    compiler = toolchain.find_compiler()
    toolchain.find_make()
    toolchain.find_python_headers()
    if ".mpi" in now.label:
        toolchain.find_mpi()
    jobs = jobs or toolchain.default_jobs()
    with_gpu = ".nccl" in now.label
    log = _fresh_log(now.label)
    with _work_folder() as work:
        install_missing(log, deadline)
        sdist = fetch_sdist(work, log, deadline)
        cmake = find_or_fetch_cmake(work, log, deadline)
        facts = torch_facts()
        abi_flag = f"-D_GLIBCXX_USE_CXX11_ABI={facts['abi']:d}"
        env = build_environment(
            dict(os.environ),
            facts=facts,
            label=now.label,
            compiler=compiler,
            cmake=cmake,
            standard=toolchain.cxx_standard(compiler, facts["include"], abi_flag),
            simd=toolchain.simd_flags(),
            jobs=jobs,
            work=work,
            gpu=gpu_environment(facts, now.label, work, log, deadline) if with_gpu else {},
        )
        how = f"C++{env['BENCH_CXX_STANDARD']}, {' and '.join(built_with(now.label))}"
        print(f"Horovod {VERSION} for torch {now.torch}: {how}; log: {log}", flush=True)
        command = [*PIP, "--no-cache-dir", "wheel", "-v", "--no-deps", "--no-build-isolation", "--use-pep517"]
        command += ["-w", str(work / "wheel"), str(sdist)]
        run_step(command, log, f"compiling Horovod, {jobs} at a time", deadline, env)
        return _keep(next((work / "wheel").glob("*.whl")))


def _fresh_log(label: str) -> Path:
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    log = cache_dir() / "logs" / f"horovod-{label}-{python}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    return log


def torch_facts() -> dict:
    """What a C++ build must know of torch, asked in a fresh process: version, abi, include, and so on."""
    command = [sys.executable, "-W", "ignore", "-c", TORCH_FACTS]
    result = capture(command, IMPORT_S)
    if result.code != 0:
        reason = result.err.strip().rpartition("\n")[2] or f"no answer within {IMPORT_S:g} s"
        raise UserError(
            f"torch is installed but cannot be imported: {reason}; fix that, then run `bench install-horovod`"
        )
    return json.loads(result.out.strip().rpartition("\n")[2])


def build_environment(base: dict, *, facts, label, compiler, cmake, standard, simd, jobs, work, gpu) -> dict:
    """What the caller's environment says to Horovod, CMake or make is dropped: it steers other builds."""
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
        **({"HOROVOD_WITH_MPI": "1"} if ".mpi" in label else {"HOROVOD_WITHOUT_MPI": "1"}),
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


def gpu_environment(facts: dict, label: str, work: Path, log: Path, deadline: float) -> dict:
    """The variables that add NCCL to a build, with the installed nvcc where it fits, else one from wheels where there
    are any: those come by network. label: of the wheel; it may name the generations of GPUs to compile for."""
    home = cuda.system_toolkit(facts["cuda"])
    if home is None and not cuda.toolkit_comes_as_wheels(facts["cuda"]):
        raise cuda.no_toolkit(facts["cuda"])
    if home is None:
        folder = work / "cuda"
        wheels = cuda.toolkit_requirements(facts["cuda"])
        command = [*PIP, "install", "--no-deps", "--target", str(folder), *wheels]
        run_step(command, log, f"fetching nvcc for CUDA {facts['cuda']}", deadline)
        home = cuda.arrange_toolkit(folder)
    nccl = cuda.arrange_nccl(work / "nccl")
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(home),
        "CUDA_HOME": str(home),
        "HOROVOD_NCCL_LINK": "SHARED",
        "NVCC_APPEND_FLAGS": "-std=c++17",  # Horovod asks for C++11, which GCC 14's headers and CUDA 13 do not take
        "HOROVOD_BUILD_CUDA_CC_LIST": cuda.arch_list(
            archs_of(label) or cuda.archs_of_torch(facts["archs"]), home / "bin" / "nvcc"
        ),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        **({"HOROVOD_NCCL_HOME": str(nccl)} if nccl else {}),
    }


def fetch_sdist(work: Path, log: Path, deadline: float) -> Path:
    """Horovod's source distribution, from the cache or through pip, its checksum verified either way."""
    kept = cache_dir() / SDIST
    if kept.exists() and hashlib.sha256(kept.read_bytes()).hexdigest() == SDIST_SHA256:
        return kept
    wanted = work / "requirement.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
    command = [
        *PIP,
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
        "--require-hashes",
    ]
    env = os.environ | {"TMPDIR": str(work / "tmp")}
    env.pop("HOROVOD_LOCAL_VERSION", None)  # it would change the version that pip reads, and pip would refuse it
    run_step([*command, "-r", str(wanted), "-d", str(work)], log, f"downloading {SDIST}", deadline, env)
    os.replace(work / SDIST, kept)
    return kept


def find_or_fetch_cmake(work: Path, log: Path, deadline: float) -> str:
    """From this environment or machine, or a wheel for this build alone."""
    found = toolchain.find_cmake()
    if found:
        return found
    command = [*PIP, "install", "--target", str(work / "cmake"), "--require-hashes", "-r", str(CMAKE_LOCK)]
    run_step(command, log, "fetching CMake", deadline)
    return str(work / "cmake" / "cmake" / "data" / "bin" / "cmake")


def _keep(wheel: Path) -> Path:
    """Both folders lie in one file system, so the wheel appears there whole."""
    kept = cache_dir() / "wheels" / wheel.name
    kept.parent.mkdir(parents=True, exist_ok=True)
    os.replace(wheel, kept)
    return kept


@contextlib.contextmanager
def _work_folder():
    """What a killed build left goes first: the lock is ours."""
    root = cache_dir() / "work"
    shutil.rmtree(root, ignore_errors=True)
    (root / "tmp").mkdir(parents=True)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
