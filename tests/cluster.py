"""A cluster of network namespaces for tests that need several machines: the fixture ``cluster``."""

import functools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cluster.make import isolate
from bench.errors import UserError
from tests import runs


@functools.cache
def why_not() -> str:
    """Why there can be no cluster here; "" where there can be one."""
    try:
        isolate()
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def cluster():
    """Runs a command on the first node of a fresh cluster, as ``run`` below. Skips where the kernel forbids it."""
    if why_not():
        pytest.skip(why_not())
    return run


def run(command: str, out: Path | None = None, env: dict | None = None, timeout: float = 240, **options) -> runs.Result:
    """``bench cluster`` from start to end: ``cluster("hostname", nodes=3, link="100mbit")``. command: for the shell, in
    the root of the clone; options: of `bench cluster`. Two nodes with a device each unless they say otherwise."""
    return runs.finish(start(command, env, **options), out, timeout)


def start(command: str, env: dict | None = None, **options) -> subprocess.Popen:
    return runs.start("cluster", *runs.flags(cmd=command, **options), env=env)


def bench(*arguments) -> str:
    """A shell command that runs `bench` there: ``cluster(bench("run", "--mode=ddp"))``."""
    return shlex.join([sys.executable, "-m", "bench", *map(str, arguments)])


def on(node: str, *command) -> str:
    """A shell command that runs another one on a node: ``on("node2", "ip", "link", "set", "eth0", "down")``."""
    return shlex.join([sys.executable, "-m", "bench.cluster.enter", node, *map(str, command)])
