"""The C++ side of the machine: which compiler, which standard, which instructions, how many jobs."""

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

INSTALL_TOOLS = (
    "`apt-get install g++ make` (Debian, Ubuntu), `dnf install gcc-c++ make` (Fedora, RHEL) or"
    " `xcode-select --install` (macOS)"
)
TRIAL_S, COMPILE_S = 60.0, 300.0  # for a tool to name its version; for one file to be compiled
STANDARDS = (14, 17, 20, 23)
MEMORY_PER_JOB_GIB = 1.5  # one compiler that reads all of torch's headers
# A line of a build's output that names an error.
ERROR = re.compile(r"(: (fatal )?error:? )|^nvcc (fatal|error)\b|CMake Error|undefined reference|No space left|Killed")


def find_compiler() -> str:
    """The C++ compiler: $CXX where set, or g++, clang++ or c++ on PATH. Raises UserError without one."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        found = name and shutil.which(name)
        if found:
            return found
    raise UserError(
        "no C++ compiler found (g++ or clang++): Horovod has to be compiled for this torch;"
        f" everything but MODE=horovod works; install it with {INSTALL_TOOLS},"
        " then run `bench install-horovod`"
    )


def find_make() -> None:
    """Raise UserError where there is no make, which Horovod's build calls."""
    if not (shutil.which("make") or shutil.which("gmake")):
        raise UserError(
            "no `make` found, which building Horovod needs; everything but MODE=horovod works;"
            f" install it with {INSTALL_TOOLS}, then run `bench install-horovod`"
        )


def find_mpi() -> None:
    """Raise UserError where there is no MPI to build with: Horovod's build asks its compiler, mpicxx, where it lies."""
    if not shutil.which("mpicxx"):
        raise UserError(
            "no mpicxx found, which Horovod with MPI is built with; install Open MPI with `apt-get install openmpi-bin"
            " libopenmpi-dev` (Debian, Ubuntu) or load your cluster's module, then run `bench install-horovod --mpi`"
        )


def find_python_headers() -> str:
    """The folder with Python.h. Raises UserError where Python came without it, as Debian's does."""
    folder = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(folder, "Python.h")):
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        raise UserError(
            f"this Python has no header files ({folder}/Python.h); everything but MODE=horovod works;"
            f" install them with `apt-get install {package}` or the like, then run `bench install-horovod`"
        )
    return folder


def find_cmake() -> str | None:
    """CMake 3.21 or newer: the one of this Python's environment, or the one on PATH."""
    scripts = sysconfig.get_paths()["scripts"]
    for path in (scripts, None):
        found = shutil.which("cmake", path=path)
        if found and _cmake_version(found) >= (3, 21):
            return found
    return None


def _cmake_version(cmake: str) -> tuple[int, ...]:
    """(major, minor), or () where it does not run."""
    result = capture([cmake, "--version"], TRIAL_S)
    found = re.search(r"version (\d+)\.(\d+)", result.out)
    return tuple(int(n) for n in found.groups()) if found else ()


def cxx_standard(compiler: str, include_dirs: list[str], abi_flag: str = "") -> int:
    """The lowest C++ standard under which torch's headers compile with this compiler.

    No table of torch versions: each standard is tried on one line, `#include <ATen/ATen.h>`. Torch guards
    that header with an #error in its first lines, so a standard that is too low fails in milliseconds
    (-Wfatal-errors stops there) and the right one costs one pass over the headers, about five seconds.
    Raises UserError where none compiles: the compiler is too old for this torch.
    """
    complaint = ""
    for standard in STANDARDS:
        command = [compiler, f"-std=c++{standard}", "-fsyntax-only", "-Wfatal-errors", "-x", "c++", "-"]
        command += [f"-I{folder}" for folder in include_dirs] + ([abi_flag] if abi_flag else [])
        result = capture(command, COMPILE_S, "#include <ATen/ATen.h>\n")
        if result.code == 0:
            return standard
        complaint = first_error(result.err) or complaint
    raise UserError(
        f"{compiler} cannot compile the headers of the installed torch ({complaint or 'it gave no reason'});"
        " everything but MODE=horovod works; install a newer compiler (g++ 11 or later), name it in CXX,"
        " then run `bench install-horovod`"
    )


def first_error(text: str) -> str:
    """The first line of a build's output that names an error: later ones are mostly its consequences.

    >>> first_error("a.cc:3:1: warning: hm\\na.cc:5:2: error: no such thing\\nmake: *** Error 2")
    'a.cc:5:2: error: no such thing'
    """
    for line in text.splitlines():
        if ERROR.search(line):
            return line.strip()[:300]
    return ""


def simd_flags(cpuinfo: str | None = None, machine: str | None = None) -> tuple[str, ...]:
    """Compiler flags for the AVX instructions of Horovod's fp16 code, where this CPU has all three of them.

    >>> simd_flags("flags\\t\\t: fpu sse2 avx f16c fma avx2", "x86_64")
    ('-mavx', '-mf16c', '-mfma')
    >>> simd_flags("flags\\t\\t: fpu sse2", "x86_64"), simd_flags("Features : asimd", "aarch64")
    ((), ())
    """
    machine = machine or platform.machine()
    if machine.lower() not in ("x86_64", "amd64"):
        return ()
    if cpuinfo is None:
        path = PROC / "cpuinfo"  # not there on macOS: build without
        cpuinfo = path.read_text() if path.exists() else ""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    has = set(found.group(1).split()) if found else set()
    return ("-mavx", "-mf16c", "-mfma") if {"avx", "f16c", "fma"} <= has else ()


def default_jobs() -> int:
    """Compilers to run at a time: one per core that this process may use, as far as memory goes."""
    meminfo = PROC / "meminfo"
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    memory = [int(found.group(1)) * 2**10] if found else []
    memory += [limit] if (limit := memory_limit()) else []
    fit = [int(each / 2**30 / MEMORY_PER_JOB_GIB) for each in memory]
    return max(1, min(usable_cores(), *fit))
