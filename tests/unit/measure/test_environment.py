"""What a record contains about where it was measured: environment, cgroup, node and nccl of bench/measure."""

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.measure import cgroup, environment, nccl, node

MACHINE = """
import json, sys
from bench.measure.environment import collect_machine, usable_cores
print(json.dumps([collect_machine(), usable_cores(), "torch" in sys.modules]))
"""


def test_the_machine_and_its_gpus_are_described_without_torch(nvml_stub):
    found, cores, torch_loaded = nvml_stub.run(MACHINE, visible="2,0", capability=[75, 90])
    assert not torch_loaded
    assert found["machine"]["usable_cores"] == cores >= 1
    assert found["machine"]["ram_gib"] > 0.1 and found["machine"]["cpu_model"]
    assert found["driver_version"] == "570.00.stub" and found["driver_note"] is None
    assert [(device["index"], device["compute_capability"]) for device in found["devices"]] == [(2, "9.0"), (0, "7.5")]
    assert found["versions"]["python"] == platform.python_version()
    assert found["variables"]["CUDA_VISIBLE_DEVICES"] == "2,0"
    found, *_ = nvml_stub.run(MACHINE, driver="none")
    assert found["devices"] == [] and found["driver_version"] is None and found["driver_note"]


def test_torch_adds_versions_and_threads(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    found = environment.collect_environment()
    assert found["versions"]["torch"] == str(torch.__version__) and found["versions"]["cudnn"] == "91002"
    assert found["threads"] == {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_no_secret_and_no_address_is_kept(monkeypatch):
    names = ("AWS_SECRET_ACCESS_KEY", "HOROVOD_SECRET_KEY", "TORCH_API_TOKEN", "NCCL_password", "HOROVOD_HOSTNAME",
             "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK", "MY_OMP_NUM_THREADS")  # fmt: skip
    secrets = dict.fromkeys(names, "s3cret") | {"TORCH_HUB_MIRROR": "https://user:s3cret@example.org/"}
    kept = {"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "60", "LD_PRELOAD": "libjemalloc.so", "MALLOC_ARENA_MAX": "2"}  # fmt: skip
    assert environment.relevant_variables(secrets | kept) == kept
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    assert "s3cret" not in json.dumps(environment.collect_environment())


def in_group(folder, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """What replaces /proc and /sys/fs/cgroup."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(membership + "\n" if membership else "")
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder / "proc", folder / "cgroup"


V1 = "cpu,cpuacct/a/cpu.cfs"


@pytest.mark.parametrize(("membership", "files", "expected"), [
    ("0::/a/b", {"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, 1.5),
    ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2.0),  # the parent's limit
    ("0::/host/path", {"cpu.max": "300000 100000"}, 3.0),  # a container: only its own root is there
    ("0::/", {"cpu.max": "max 100000"}, None),
    ("4:cpu,cpuacct:/a", {f"{V1}_quota_us": "50000", f"{V1}_period_us": "100000"}, 0.5),
    ("1:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ("3:cpuset:/a", {"cpuset/a/cpu.max": "100000 100000"}, None),
    ("", {}, None),
])  # fmt: skip
def test_cpu_quota_of_a_control_group(tmp_path, membership, files, expected):
    assert environment.cpu_quota(*in_group(tmp_path, membership, files)) == expected


NONE_1 = str(2**63 - 4096)  # what the kernel writes where there is no limit, in version 1


@pytest.mark.parametrize(("membership", "files", "limit", "kills"), [
    ("0::/a", {"a/memory.max": "2147483648", "a/memory.events": "low 0\nmax 9\noom 1\noom_kill 3"}, 2**31, 3),
    ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "1048576"}, 2**20, 0),  # the parent's limit
    ("0::/host/path", {"memory.max": "4096", "memory.events": "oom_kill 1"}, 4096, 1),  # a container
    ("0::/a", {"a/memory.events": "oom_kill 0", "memory.events": "oom_kill 7"}, None, 0),  # others of the parent
    ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "8192", "memory/memory.limit_in_bytes": NONE_1,
                     "memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2"}, 8192, 2),
    ("3:cpu:/a", {"cpu/a/memory.max": "1"}, None, 0),
])  # fmt: skip
def test_memory_limit_of_a_control_group(tmp_path, membership, files, limit, kills):
    places = in_group(tmp_path, membership, files)
    assert (cgroup.memory_limit(*places), cgroup.oom_kills(*places)) == (limit, kills)


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.5, 2), (0.5, 1), (64.0, 4)])
def test_usable_cores_are_the_smaller_of_affinity_and_quota(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(environment, "cpu_quota", lambda: quota)
    assert environment.usable_cores() == expected


def test_a_processor_without_cpuinfo_is_named_by_sysctl(tmp_path):
    """As on macOS; an ARM Linux has neither, and its architecture is named."""
    code = "from bench.measure.environment import cpu_model; print(cpu_model())"
    for script, name in (("echo Apple M2", "Apple M2"), ("exit 1", platform.processor() or platform.machine())):
        (tmp_path / "sysctl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "sysctl").chmod(0o755)
        env = os.environ | {"BENCH_PROC": "/nowhere", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == name


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_revision_and_what_counts_as_dirty(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *who, *arguments], text=True).strip()

    assert environment.git_state(tmp_path) is None
    git("init", "--quiet")
    assert environment.git_state(tmp_path) == {"revision": None, "dirty": False}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a.py").write_text("")
    git("add", ".")
    git("commit", "--quiet", "-m", "a")
    clean = {"revision": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "notes.txt").write_text("outside bench/: changes no figure")
    assert environment.git_state(tmp_path) == clean
    (tmp_path / "bench" / "new_mode.py").write_text("")
    assert environment.git_state(tmp_path) == clean | {"dirty": True}
    assert environment.git_state(tmp_path / "bench") is None  # a folder in a repository is not that repository


def test_the_hash_of_the_code_is_of_what_can_change_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    for file, changes in (("training/loop.py", True), ("report/page.py", False)):
        (path := tmp_path / "bench" / file).parent.mkdir(parents=True)
        path.write_text("")
        before = environment.source_hash.__wrapped__()
        path.write_text("# another line")
        assert (environment.source_hash.__wrapped__() != before) == changes


def test_a_command_that_takes_too_long_gives_nothing():
    assert environment._output(["sleep", "5"], timeout_s=0.1) is None
    assert environment._output(["no-such-command-here"], timeout_s=1) is None


@pytest.mark.parametrize(("interface", "limit", "speed"), [
    ("lo", "100", 100.0), ("lo", "", None), ("lo", "0.1", 0.1), ("eth7", None, 25000),
])  # fmt: skip
def test_a_link_is_as_fast_as_its_limit_or_its_interface(monkeypatch, interface, limit, speed):
    """The interfaces of namespaces say 10 Gbit/s, whatever the limit is."""
    monkeypatch.setenv("BENCH_IFACE", interface)
    monkeypatch.delenv("BENCH_LINK_MBIT", raising=False)
    if limit is not None:
        monkeypatch.setenv("BENCH_LINK_MBIT", limit)
    monkeypatch.setattr("psutil.net_if_stats", lambda: {"eth7": type("Stats", (), {"speed": 25000})})
    assert node.link() == {"interface": interface, "link_speed_mbit": speed}


TORCH = """
import ctypes, os, types
if "MADE_UP_NCCL" in os.environ:
    ctypes.CDLL(os.environ["MADE_UP_NCCL"])
distributed = types.SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: {built})
cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: {compiled!r}))
"""


COMPILER = shutil.which("gcc") or shutil.which("cc")


@pytest.mark.skipif(not COMPILER or sys.platform != "linux", reason="a made-up NCCL needs Linux and a C compiler")
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
def test_the_nccl_that_is_loaded_says_its_version(tmp_path, monkeypatch, compiled, loaded, found, shared):
    """By a made-up torch that was compiled with one NCCL, and loads another; None for none."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH.format(built=bool(compiled), compiled=compiled))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if loaded:
        library, source = tmp_path / "other place" / "libnccl.so.2", tmp_path / "nccl.c"
        library.parent.mkdir()
        source.write_text(f"int ncclGetVersion(int *version) {{ *version = {loaded}; return 0; }}\n")
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
        monkeypatch.setenv("MADE_UP_NCCL", str(library))
    monkeypatch.setattr(nccl, "version", functools.cache(nccl.version.__wrapped__))
    assert nccl.version() == found
    assert (os.environ.get(nccl.SHARING) is None) and bool(nccl.shared_variables()) == shared
