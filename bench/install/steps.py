"""Steps of an installation that are one command each: run, log, explain a failure in one line."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

from bench.errors import BenchError, UserError
from bench.install import toolchain
from bench.install.logged import run_logged

# What Horovod declares, setuptools for the distutils that its runner imports, and wheel for the build.
NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "setuptools", "wheel")
REST_WORKS = "everything but MODE=horovod works"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "2")


def run_step(command: list[str], log: Path, title: str, deadline: float, env: dict | None = None) -> None:
    """One logged step of the build. Raises BenchError with the first error line and the log's place."""
    start = log.stat().st_size if log.exists() else 0
    try:
        code = run_logged(command, log, title, env=env, deadline=deadline)
    except TimeoutError:
        raise UserError(
            f"the time limit was reached while {title}; {REST_WORKS}; give more with --timeout; log: {log}"
        ) from None
    if code != 0:
        with open(log, errors="replace") as file:
            file.seek(start)
            raise BenchError(f"{title} failed: {explain_failure(file.read())}; {REST_WORKS}; log: {log}")


def explain_failure(output: str) -> str:
    """Why a step failed, from its output: a known cause in plain words, or its first error, or its last line.

    >>> explain_failure("Could not fetch\\nERROR: No matching distribution found for horovod==0.28.1")
    'no package found (is there a network? else set PIP_FIND_LINKS to a folder that holds the files)'
    """
    if "No module named pip" in output:
        return f"{sys.executable} has no pip (run `{sys.executable} -m ensurepip`)"
    if re.search(r"No matching distribution|NewConnectionError|name resolution", output):
        return "no package found (is there a network? else set PIP_FIND_LINKS to a folder that holds the files)"
    if re.search(r"Unsupported gpu architecture", output):
        first = toolchain.first_error(output)
        return f"{first} (`bench install-horovod --gpu here` compiles for the GPUs of this machine alone)"
    if "externally-managed-environment" in output:
        return "this system's Python is closed to pip (use the project's own environment: `make setup`)"
    lines = [line for line in output.splitlines() if line.strip()]
    return toolchain.first_error(output) or (lines[-1].strip()[:300] if lines else "no output")


def install_missing(log: Path, deadline: float) -> None:
    """What is there of NEEDS keeps its version."""
    missing = [name for name in NEEDS if not _has(name)]
    if missing:
        run_step([*PIP, "install", *missing], log, f"installing {' '.join(missing)}", deadline)
        importlib.invalidate_caches()


def _has(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
