"""The fixture `nvml_stub`: a made-up NVIDIA driver with four GPUs, for tests of what is read through NVML.

The driver (`nvml_stub.c`, where its settings are listed) is a shared library, so it is loaded by fresh Python
processes alone. `nvml_stub.run(code, used_mib=[1, 2, 3, 4])` runs `code` in one and returns what it printed as JSON;
`nvml_stub.each(code, rows)` returns what its function `ask()` returns under each row of settings, all in one process.
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
ASK = """
import json, os
from bench.measure import nvml
{code}
found = []
for row in {rows!r}:
    for name in [name for name in os.environ if name.startswith(("STUB_NVML_", "CUDA_"))]:
        del os.environ[name]
    os.environ.update(row)
    nvml._connect.cache_clear()
    found.append(ask())
print(json.dumps(found))
"""


@dataclass(frozen=True)
class NvmlStub:
    """The built drivers, one a folder: new, old, ancient."""

    folder: Path

    def environ(self, driver: str = "new", visible: str | None = None, **settings: Any) -> dict[str, str]:
        """This process's environment with the made-up driver in it: new, old (no memory v2, process list v3, energy),
        ancient (cannot be started), none. visible: the value of CUDA_VISIBLE_DEVICES; None leaves it unset. settings:
        `used_mib=[1, 2]` becomes STUB_NVML_USED_MIB=1,2, and so on."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("STUB_NVML_", "CUDA_"))}
        environ["LD_LIBRARY_PATH"] = f"{self.folder / driver}:{environ.get('LD_LIBRARY_PATH', '')}"
        environ["PYTHONPATH"] = str(REPOSITORY)
        return environ | variables(visible, **settings)

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

    def each(self, code: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """What `ask()`, a function of `code`, returns with each row's settings, under the new driver."""
        return self.run(ASK.format(code=code, rows=[variables(**row) for row in rows]))


def variables(visible: str | None = None, **settings: Any) -> dict[str, str]:
    found = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for name, value in settings.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        found[f"STUB_NVML_{name.upper()}"] = ",".join(map(str, values))
    return found


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
