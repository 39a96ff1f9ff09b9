"""What all tests share: a stub of NVML, a local S3 server, programs that begin with torch, a small disk, a record."""

import compileall
import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys

import pytest
from _pytest.assertion import rewrite

from bench.config.fields import variable_of
from bench.config.options import FIELDS
from bench.course.chapters import ADDRESSES
from bench.measure.environment import usable_cores
from tests import runs

for name in ("QUICK", *map(variable_of, FIELDS.values())):
    os.environ.pop(name, None)  # each `bench` would say that it is not used: `make test QUICK=1` has it here
os.environ.update(runs.PATIENT)  # before anything here imports torch
sys.modules.setdefault(ADDRESSES, None)
pytest_plugins = ["tests.stubs.nvml", "tests.s3", "tests.forked_programs", "tests.cluster", "tests.browser.chromium"]


# Of a job in the background, and under nohup: children inherit it.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_configure(config) -> None:
    """Hundreds of processes import this project. Where none of them may keep what it has compiled, it is compiled here,
    once. So are the tests, in which pytest rewrites assertions: each of its workers would."""
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        for folder in ("bench", "tests"):
            compileall.compile_dir(runs.ROOT / folder, quiet=2)
        with contextlib.suppress(AttributeError):  # of a pytest that names them otherwise
            for path in (runs.ROOT / "tests").rglob("test_*.py") if getattr(config.option, "numprocesses", 0) else ():
                pyc = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
                if not rewrite._read_pyc(path, pyc):
                    source, code = rewrite._rewrite_test(path, config)
                    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, pyc)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """The tests' modules import a million objects that stay: they are not garbage."""
    gc.disable()
    found = yield
    gc.freeze()
    gc.enable()
    return found


def pytest_collection_modifyitems(items) -> None:
    """Folders of long files first: one worker runs a file, and the end should be of short ones."""
    first = {"notebooks": 0, "multiprocess": 1, "exercises": 2}
    items.sort(key=lambda item: first.get(item.nodeid.removeprefix("tests/").partition("/")[0], len(first)))


@pytest.hookimpl(optionalhook=True)  # also without pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than there are cores, for tests also wait; at most four."""
    return min(4, usable_cores() + 2)


def pytest_terminal_summary(terminalreporter) -> None:
    """A parametrized function is one test with several items."""
    reports = [each for several in terminalreporter.stats.values() for each in several if hasattr(each, "when")]
    items = {report.nodeid for report in reports}
    terminalreporter.write_line(f"{len(items)} items of {len({each.split('[')[0] for each in items})} test functions")


@pytest.fixture(scope="session")
def real_run(tmp_path_factory, forked_programs):
    """One small run of a single process that ended well, for tests that read what a run leaves behind."""
    return runs.run(tmp_path_factory.mktemp("real"), mode="single", steps=3, copies=forked_programs).ok()


@pytest.fixture
def small_disk(tmp_path):
    """Makes a file system of a few pages of 4 KiB. Skips where this process may not mount one."""
    mounted = []

    def make(pages: int):
        (folder := tmp_path / f"disk{pages}").mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={pages * 4}k", "tmpfs", str(folder)]
        if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a full disk needs the right to mount a small one: run as root, outside a sandbox")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
