"""The fixture `nvml_stub`: a made-up NVIDIA driver with four GPUs, for tests of what is read through NVML.

The driver (`nvml_stub.c`, where its settings are listed) is a shared library, so it is loaded by fresh Python
processes alone: `nvml_stub.run(code, used_mib=[1, 2, 3, 4])` runs `code` in one and returns what it printed as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
REPOSITORY = SOURCE.parents[2]
DRIVERS = {"new": (), "old": ("-DSTUB_NVML_OLD",), "ancient": ("-DSTUB_NVML_ANCIENT",)}


@dataclass(frozen=True)
class NvmlStub:
    """The built drivers, one a folder: new, old, ancient."""

    folder: Path

    def environ(self, driver: str = "new", visible: str | None = None, **settings: Any) -> dict[str, str]:
        """This process's environment with the made-up driver in it.

        Args:
            driver: new, old (no memory v2, process list v3, energy), ancient (cannot be started), none.
            visible: The value of CUDA_VISIBLE_DEVICES; None leaves it unset.
            settings: `used_mib=[1, 2]` becomes STUB_NVML_USED_MIB=1,2, and so on.
        """
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("STUB_NVML_", "CUDA_"))}
        environ["LD_LIBRARY_PATH"] = f"{self.folder / driver}:{environ.get('LD_LIBRARY_PATH', '')}"
        environ["PYTHONPATH"] = str(REPOSITORY)
        if visible is not None:
            environ["CUDA_VISIBLE_DEVICES"] = visible
        return environ | {f"STUB_NVML_{name.upper()}": _listed(value) for name, value in settings.items()}

    def run(self, code: str, **environ: Any) -> Any:
        """What `code`, run by a fresh Python, printed last, read as JSON. Arguments as for `environ`."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    """The made-up drivers, built once a session; skips where that cannot be done."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the made-up NVML driver needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    for driver, flags in DRIVERS.items():
        library = folder / driver / "libnvidia-ml.so.1"
        library.parent.mkdir()
        command = [compiler, "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", *flags]
        subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    (folder / "none").mkdir()
    (folder / "none" / "libnvidia-ml.so.1").write_text("not a library: stands before the machine's own driver")
    return NvmlStub(folder)


def _listed(value: Any) -> str:
    """A list as the stub reads it: joined by commas."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(item) for item in value)
    return str(value)
