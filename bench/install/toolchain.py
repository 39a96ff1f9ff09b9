"""The C++ side of a build: compiler, standard, instructions, parallel jobs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig

from bench.errors import UserError
from bench.files import PROC
from bench.measure.cgroup import memory_limit
from bench.measure.environment import usable_cores
from bench.process.tree import capture

INSTALL_TOOLS = "`apt-get install g++ make`, `dnf install gcc-c++ make` or `xcode-select --install`"
AGAIN = "everything but MODE=horovod works; then run `bench install-horovod`"
TRIAL_S, COMPILE_S = 60.0, 300.0  # for a tool to name its version; for one file to be compiled
STANDARDS = (14, 17, 20, 23)
MEMORY_PER_JOB_GIB = 1.5  # one compiler that reads all of torch's headers
# A line of a build's output that names an error.
ERROR = re.compile(r"(: (fatal )?error:? )|^nvcc (fatal|error)\b|CMake Error|undefined reference|No space left|Killed")


def find_compiler() -> str:
    """$CXX, g++, clang++ or c++. Raises UserError without one."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        found = name and shutil.which(name)
        if found:
            return found
    raise UserError(f"no C++ compiler found (g++ or clang++): install one for Horovod with {INSTALL_TOOLS}; {AGAIN}")


def require_build_tools(mpi: bool) -> None:
    """Raise UserError without make, Python's headers, or, with ``mpi``, MPI's compiler."""
    if mpi and not shutil.which("mpicxx"):
        remedy = "`apt-get install openmpi-bin libopenmpi-dev` or load your cluster's module"
        raise UserError(f"no mpicxx found: {remedy}, then run `bench install-horovod --mpi`")
    if not (shutil.which("make") or shutil.which("gmake")):
        raise UserError(f"no `make` found: install it for Horovod with {INSTALL_TOOLS}; {AGAIN}")
    folder = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(folder, "Python.h")):
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        raise UserError(f"no Python.h in {folder}: install it, as with `apt-get install {package}`; {AGAIN}")


def find_cmake() -> str | None:
    """CMake 3.21 or newer, of this environment or on PATH."""
    for path in (sysconfig.get_paths()["scripts"], None):
        if cmake := shutil.which("cmake", path=path):
            version = re.search(r"version (\d+)\.(\d+)", capture([cmake, "--version"], TRIAL_S).out)
            if version and tuple(map(int, version.groups())) >= (3, 21):
                return cmake
    return None


def cxx_standard(compiler: str, include_dirs: list[str], abi_flag: str = "") -> int:
    """The lowest C++ standard with which torch's headers compile, by trying: a #error in <ATen/ATen.h> makes a lower
    one fail in milliseconds. Raises UserError if none works."""
    complaint = ""
    for standard in STANDARDS:
        command = [compiler, f"-std=c++{standard}", "-fsyntax-only", "-Wfatal-errors", "-x", "c++", "-"]
        command += [f"-I{folder}" for folder in include_dirs] + ([abi_flag] if abi_flag else [])
        result = capture(command, COMPILE_S, "#include <ATen/ATen.h>\n")
        if result.code == 0:
            return standard
        complaint = first_error(result.err) or complaint
    remedy = f"install a newer compiler (g++ 11 or later) and name it in CXX; {AGAIN}"
    raise UserError(f"{compiler} cannot compile torch's headers ({complaint or 'it gave no reason'}): {remedy}")


def first_error(text: str) -> str:
    """The first line of a build's output that names an error."""
    return next((line.strip()[:300] for line in text.splitlines() if ERROR.search(line)), "")


def simd_flags(cpuinfo: str | None = None, machine: str | None = None) -> tuple[str, ...]:
    """Compiler flags for Horovod's fp16 code, if this CPU has AVX, F16C and FMA.

    >>> simd_flags("flags\\t\\t: fpu sse2 avx f16c fma avx2", "x86_64")
    ('-mavx', '-mf16c', '-mfma')
    >>> simd_flags("flags\\t\\t: fpu sse2", "x86_64"), simd_flags("Features : asimd", "aarch64")
    ((), ())
    """
    if (machine or platform.machine()).lower() not in ("x86_64", "amd64"):
        return ()
    if cpuinfo is None:
        path = PROC / "cpuinfo"  # not there on macOS: build without
        cpuinfo = path.read_text() if path.exists() else ""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    has = set(found.group(1).split()) if found else set()
    return ("-mavx", "-mf16c", "-mfma") if {"avx", "f16c", "fma"} <= has else ()


def default_jobs() -> int:
    """One compiler per usable core, as far as memory allows."""
    meminfo = PROC / "meminfo"
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    memory = [int(found.group(1)) * 2**10] if found else []
    memory += [limit] if (limit := memory_limit()) else []
    fit = [int(each / 2**30 / MEMORY_PER_JOB_GIB) for each in memory]
    return max(1, min(usable_cores(), *fit))
