"""Which build of PyTorch a set-up takes: real pip and uv, a real index on this machine, wheels of a few bytes."""

import functools
import hashlib
import http.server
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from bench.install import packages, torch_build
from tests.runs import ROOT

pytestmark = pytest.mark.slow

TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
OURS = f"{TAG}-{TAG}-linux_{platform.machine()}"
UV = '#!/bin/sh\nexec ${REAL_UV:-false} "$@"\n'  # a uv that fails, unless there is a real one
LIBRARIES = ("nvidia-ml-py", "nvidia-nccl-cu13", "triton", "numpy")
CUDA_12 = ("nvidia-nccl-cu12", "triton")  # what the build for it needs
PACKAGES = {*LIBRARIES, *CUDA_12, "torch", "torchvision"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="PyPI has one build for macOS, for CPUs")


def wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", script: str = "", needs=()) -> str:
    """Make a wheel that holds a version, and a program of its own name; its line in a lock."""
    folder.mkdir(parents=True, exist_ok=True)
    module, stem = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module}/__init__.py": "",
        f"{module}/version.py": f"__version__ = '{version}'\n",
        f"{stem}.dist-info/METADATA": about + "".join(f"Requires-Dist: {each}\n" for each in needs),
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        **({f"{stem}.data/scripts/{name}": script} if script else {}),
    }
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            info = zipfile.ZipInfo(inside)
            info.external_attr = 0o100755 << 16  # a program must be one
            archive.writestr(info, text)
        archive.writestr(f"{stem}.dist-info/RECORD", "".join(f"{inside},,\n" for inside in files))
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(address, lock): an ordinary index, one with builds for CPUs, one for CUDA 12, one without this version; a lock
    of the first."""
    root = tmp_path_factory.mktemp("indexes")
    lines = [wheel(root / "simple" / name, name, "1.0") for name in LIBRARIES]
    lines.append(wheel(root / "simple" / "cuda-toolkit", "cuda-toolkit", "13.0.3.0"))
    for name in CUDA_12:
        wheel(root / "cu126" / name, name, "1.0")
    for name, version in (("torch", "2.14.1"), ("torchvision", "0.29.1")):
        lines.append(wheel(root / "simple" / name, name, version))
        wheel(root / "cpu" / name, name, f"{version}+cpu", OURS)
        wheel(root / "cu126" / name, name, f"{version}+cu126", OURS, needs=CUDA_12)
        wheel(root / "older" / name, name, "1.0+cpu", OURS)
    lines.append(wheel(root / "simple" / "uv", "uv", "1.0", script=UV))
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", "".join(lines)
        server.shutdown()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An environment with that uv, which a set-up would fetch, and a link to the pip that is here."""
    folder, pip = tmp_path_factory.mktemp("environments") / "bare", pytest.importorskip("pip")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=300)
    (next(folder.glob("lib/python*/site-packages")) / "pip").symlink_to(Path(pip.__file__).parent)
    (folder / "bin" / "uv").write_text(UV)
    (folder / "bin" / "uv").chmod(0o755)
    return folder


@pytest.fixture
def setup(served, bare, tmp_path, monkeypatch):
    """Makes .venv as make does, from that lock, without this project and Horovod; gives the exit code, and what is in
    it. A new environment is a copy of the bare one, which takes a tenth of the time."""
    address, lock = served
    step = packages.step

    def copied_or_done(command: list[str], title: str) -> None:
        if command[1:4] != ["-m", "venv", "--clear"]:
            step(command, title)
            return
        shutil.rmtree(command[4], ignore_errors=True)
        shutil.copytree(bare, command[4], symlinks=True)

    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": f"{address}/simple/", "NO_PROXY": "127.0.0.1",
                        torch_build.OTHER_INDEX: f"{address}/cpu"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch_build, "has_driver", lambda: False)
    (tmp_path / "lock").write_text(lock)
    for name, value in {"LOCK": tmp_path / "lock", "NOTEBOOKS_LOCK": tmp_path / "lock", "STATE": tmp_path / "state",
                        "LOG": tmp_path / "state" / "log", "LOCKED_PYTHONS": (sys.version_info[:2],),
                        "step": copied_or_done, "install_project": lambda python: None,
                        "install_horovod": lambda python: None}.items():  # fmt: skip
        monkeypatch.setattr(packages, name, value)

    def make(*arguments: str) -> tuple[int, set[str]]:
        code = packages.main(["--venv", str(tmp_path / "venv"), "--stamp", str(tmp_path / "ready"), *arguments])
        found = [path.stem for path in (tmp_path / "venv").glob("lib/python*/site-packages/*.dist-info")]
        return code, {stem for stem in found if stem.split("-")[0].replace("_", "-") in PACKAGES}

    return make


CPU = {"torch-2.14.1+cpu", "torchvision-0.29.1+cpu", "numpy-1.0", "nvidia_ml_py-1.0"}
CUDA = {"torch-2.14.1", "torchvision-0.29.1", "numpy-1.0", "nvidia_ml_py-1.0", "nvidia_nccl_cu13-1.0", "triton-1.0"}


@linux
def test_without_a_driver_the_build_for_cpus_is_taken_by_pip_and_stays(setup, tmp_path, monkeypatch):
    """At the lock's versions, and without CUDA's libraries; what the course needs does not bring them in. Without uv it
    is fetched."""
    assert setup() == (0, CPU)
    (uv := tmp_path / "venv" / "bin" / "uv").unlink()
    shutil.rmtree(next((tmp_path / "venv").glob("lib/python*/site-packages/uv-*.dist-info")))
    monkeypatch.setenv(torch_build.OTHER_INDEX, "http://127.0.0.1:1")  # the next time it is not looked for
    monkeypatch.setattr(torch_build, "has_driver", lambda: True)
    assert setup("--notebooks") == (0, CPU) and uv.exists()


@linux
@pytest.mark.skipif(not Path(sys.executable).with_name("uv").exists(), reason="uv is not installed here")
def test_uv_takes_it_from_the_same_index(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("REAL_UV", str(Path(sys.executable).with_name("uv")))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    assert setup("--torch", "cpu") == (0, CPU)
    (by,) = (tmp_path / "venv").glob("lib/python*/site-packages/torch-*.dist-info/INSTALLER")
    assert by.read_text().strip() == "uv"


def test_the_index_is_asked_for_this_version_python_and_machine(served, monkeypatch):
    """One that takes a connection and does not answer is not waited for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(torch_build, "LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for index, there in (
            (f"{served[0]}/cpu", True),
            (f"{served[0]}/older", False),
            (f"{served[0]}/nowhere", False),
            (f"http://127.0.0.1:{silent.getsockname()[1]}", False),
        ):
            monkeypatch.setenv(torch_build.OTHER_INDEX, index)
            assert (torch_build.why_not_there("2.14.1", "cpu") == "") == there, index


@linux
def test_an_index_that_cannot_be_reached(setup, monkeypatch, served, capfd):
    """The ordinary build is taken; asked for, it is an error."""
    monkeypatch.setenv(torch_build.OTHER_INDEX, f"{served[0]}/older")
    code, _ = setup("--torch", "cpu")
    assert code == 2 and "TORCH=cuda" in capfd.readouterr().err.splitlines()[-1]
    monkeypatch.setenv(torch_build.OTHER_INDEX, "http://127.0.0.1:1")
    assert setup() == (0, CUDA)
    assert "http://127.0.0.1:1" in capfd.readouterr().out


def test_the_real_locks_lose_torch_and_cuda_and_nothing_else():
    """And they agree, and name no host."""
    versions = []
    for lock in (packages.LOCK, packages.NOTEBOOKS_LOCK):
        text = lock.read_text()
        versions.append(dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)))
        kept = torch_build.without_cuda(text)
        names = {line.split("==")[0] for line in text.splitlines() if "==" in line and not line.startswith(("#", " "))}
        lost = {name for name in names if f"\n{name}==" not in f"\n{kept}"}
        assert {"torch", "torchvision", "triton"} < lost and "nvidia-ml-py" not in lost
        assert all(name.startswith(("torch", "triton", "nvidia-", "cuda-")) for name in lost)
        assert list(torch_build.versions(text)) == ["torch", "torchvision"] and "://" not in text
    base, notebooks = versions
    assert {name: notebooks.get(name, version) for name, version in base.items()} == base


@linux
def test_a_package_with_another_checksum_than_the_locks_is_not_installed(setup, tmp_path, capfd):
    lock = tmp_path / "lock"
    lock.write_text(re.sub(r"(?m)^(numpy==1.0 \\\n.*sha256:).*", r"\g<1>" + 64 * "0", lock.read_text()))
    code, found = setup("--torch", "cpu")
    assert code == 2 and "numpy-1.0" not in found and "setup: " in capfd.readouterr().err


def test_the_locks_own_build_is_taken_where_it_fits_or_the_driver_does_not_answer(monkeypatch):
    """No index is looked at."""
    monkeypatch.setattr(torch_build, "has_driver", lambda: True)
    monkeypatch.setenv(torch_build.OTHER_INDEX, "http://127.0.0.1:1")
    lock = packages.LOCK.read_text()
    for driver in (R580, torch_build.Driver(), R535._replace(cuda=None)):
        monkeypatch.setattr(torch_build, "ask_driver", lambda driver=driver: driver)
        assert torch_build.choose("auto", Path("nowhere"), lock) == ("cuda", "")
    assert torch_build.own_build(lock) in torch_build.BUILDS


FOR_CUDA_12 = {"torch-2.14.1+cu126", "torchvision-0.29.1+cu126", "numpy-1.0", "nvidia_ml_py-1.0",
               "nvidia_nccl_cu12-1.0", "triton-1.0"}  # fmt: skip
R535 = torch_build.Driver("535.183.01", (12, 2), ((8, 0),))
R470 = torch_build.Driver("470.42.01", (11, 4), ((7, 0),))
R580 = torch_build.Driver("580.65", (13, 0), ((9, 0),))


@linux
def test_an_older_driver_gets_the_build_that_it_serves_and_keeps_it(setup, monkeypatch, tmp_path, capfd):
    """With the libraries that this build needs, and none of the lock's for another CUDA."""
    monkeypatch.setattr(torch_build, "has_driver", lambda: True)
    monkeypatch.setattr(torch_build, "ask_driver", lambda: R535)
    assert setup() == (0, FOR_CUDA_12)
    said = capfd.readouterr().out
    assert all(value in said for value in ("535.183.01", "CUDA 12.2", "8.0", "cu126"))
    monkeypatch.setattr(torch_build, "ask_driver", lambda: R580)
    assert setup() == (0, FOR_CUDA_12)  # it is left as it is
    assert setup("--torch", "cu126") == (0, FOR_CUDA_12)
    (tmp_path / "venv" / "mark").touch()
    assert setup("--torch", "cu130") == setup("--torch", "cuda") == (0, CUDA)  # the lock's own, made again
    assert not (tmp_path / "venv" / "mark").exists()
    monkeypatch.setattr(torch_build, "ask_driver", lambda: R535)
    assert setup("--torch", "auto") == (0, CUDA)


@linux
@pytest.mark.parametrize(("driver", "index", "words", "values"), [
    (R470, "cpu", [], ["470.42.01", "CUDA 11.4", "525", "TORCH=cpu"]),
    (R535, "nowhere/cpu", [], ["cu126", "BENCH_TORCH_INDEX", "TORCH=cpu"]),
    (R580._replace(capabilities=((3, 5),)), "cpu", [], ["3.5"]),
    (R580, "cpu", ["--torch", "cu128"], ["TORCH=cu128", "2.14.1", "TORCH=auto"]),
    (R580, "cpu", ["--torch", "rocm"], ["TORCH=rocm"]),
    (R580, "cpu", ["--torch", "cpu", "--venv", "none"], ["TORCH", "VENV=none"]),
])  # fmt: skip
def test_what_cannot_be_had_is_one_line(setup, monkeypatch, served, capfd, driver, index, words, values):
    monkeypatch.setattr(torch_build, "has_driver", lambda: True)
    monkeypatch.setattr(torch_build, "ask_driver", lambda: driver)
    monkeypatch.setenv(torch_build.OTHER_INDEX, f"{served[0]}/{index}")
    assert setup(*words) == (2, set())
    said = capfd.readouterr().err
    assert said.startswith("setup: ") and said.count("\n") == 1 and all(value in said for value in values)


ASK = "import json; from bench.install import torch_build; print(json.dumps(torch_build.ask_driver()))"


@pytest.mark.parametrize(("machine", "told"), [
    ({"count": 2, "capability": [80, 120], "cuda": 12020}, ["570.00.stub", [12, 2], [[8, 0], [12, 0]]]),
    ({"driver": "old", "count": 1, "cuda": 11040}, ["570.00.stub", [11, 4], [[9, 0]]]),
    ({"count": 1, "unsupported": ["cuda", "capability"]}, ["570.00.stub", None, []]),
    ({"init_error": 18}, ["", None, []]),
    ({"driver": "none"}, ["", None, []]),
])  # fmt: skip
def test_the_driver_is_asked_without_any_package(nvml_stub, machine, told):
    assert nvml_stub.run(ASK, **machine) == told


GENERATIONS = {"Maxwell": (5, 2), "Pascal": (6, 1), "Volta": (7, 0), "Turing": (7, 5), "Ampere": (8, 0), "Ada": (8, 9),
               "Hopper": (9, 0), "Blackwell": (12, 0)}  # fmt: skip


def generations(words: str) -> list[tuple]:
    names, every = re.findall("[A-Z][a-z]+", words), list(GENERATIONS)
    if "to" in words or "newer" in words:
        names = every[every.index(names[0]) : every.index(names[-1]) + 1 if "to" in words else None]
    return [GENERATIONS[name] for name in names or every]


def test_the_manuals_table_is_what_is_taken():
    manual, lock = (ROOT / "tutorials/manual/where_it_runs.md").read_text(), packages.LOCK.read_text()
    table = re.search(r"\| `TORCH=auto` takes \|\n\|.*?\n(.*?)\n\n", manual, re.DOTALL)[1]
    rows = re.findall(r"^\| CUDA (\d+).*? \| (.*?) \| (?:`(\w+)`|none: an error.*) \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n") and "`cpu`" in table.rpartition("\n")[2]  # the last: no driver
    for cuda, words, build in rows:
        for capability in generations(words):
            driver = torch_build.Driver(cuda=(int(cuda), 0), capabilities=(capability,))
            taken = torch_build.fitting(driver, torch_build.versions(lock)["torch"])
            assert [torch_build.named(each, lock) for each in taken[:1]] == [build] * bool(build), (cuda, capability)
