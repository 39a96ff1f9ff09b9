"""bench/measure/nccl.py: which NCCL is loaded, by made-up libraries and a made-up torch."""

import os
import shutil
import subprocess
import sys

import pytest

from bench.measure import nccl

TORCH = """
import ctypes, os, types
if "MADE_UP_NCCL" in os.environ:
    ctypes.CDLL(os.environ["MADE_UP_NCCL"])
distributed = types.SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: {built})
cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: {compiled!r}))
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """``machine(compiled, loaded)``: a torch that was compiled with one NCCL, and loads another; None for none."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a made-up NCCL needs Linux and a C compiler")

    def make(compiled: tuple | None, loaded: int | None) -> None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(TORCH.format(built=bool(compiled), compiled=compiled))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        if loaded:
            library, source = tmp_path / "other place" / "libnccl.so.2", tmp_path / "nccl.c"
            library.parent.mkdir()
            source.write_text(f"int ncclGetVersion(int *version) {{ *version = {loaded}; return 0; }}\n")
            subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
            monkeypatch.setenv("MADE_UP_NCCL", str(library))
        nccl.version.cache_clear()

    yield make
    nccl.version.cache_clear()


@pytest.mark.parametrize(
    ("compiled", "loaded", "found", "shared"),
    [
        ((2, 28, 9), 23007, (2, 30, 7), True),  # a newer package was installed
        ((2, 30, 7), 22809, (2, 28, 9), False),  # an older one comes first on the library path
        ((2, 30, 7), None, (2, 30, 7), True),  # it is a part of torch's own library
        ((2, 8, 3), 2804, (2, 8, 4), False),
        (None, None, None, False),
    ],
)
def test_the_library_that_is_loaded_says_its_version(machine, compiled, loaded, found, shared):
    machine(compiled, loaded)
    assert nccl.version() == found
    assert (os.environ.get(nccl.SHARING) is None) and bool(nccl.shared_variables()) == shared
