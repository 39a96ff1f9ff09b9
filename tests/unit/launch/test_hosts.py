"""bench/launch/hosts.py and machine.py: what is wrong with a machine is said before a rank is started. The machines are
two names of this one; REMOTE is a small script that stands where ssh would."""

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path

import psutil
import pytest

from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.errors import RunFailed, UserError
from bench.launch import hosts, launcher, machine
from tests import runs

pytestmark = pytest.mark.slow

HOSTS, BOTH_HERE = "localhost:1,other:1", "localhost:1,127.0.0.1:1"
ENTER = 'host=$1; shift\nexec "$@"'  # argv: env PYTHONPATH=… python -m bench.launch.machine FOLDER
# Other things are found there than here: the folder of this script comes first on Python's path.
ELSEWHERE = 'host=$1; shift; path=${2#PYTHONPATH=}; shift 2; cd /\nPYTHONPATH=$(dirname "$0"):$path exec "$@"'
REFUSED = "ssh: connect to host other port 22: Connection refused"


@pytest.fixture
def enter(tmp_path):
    """Makes a REMOTE of a script."""

    def make(script: str) -> str:
        path = tmp_path / "enter"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return f"{path} {{host}}"

    return make


def on_machines() -> list[psutil.Process]:
    """What this process has started on machines and is still there."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [process] if "bench.launch.machine" in " ".join(process.cmdline()) else []
    return found


# What REMOTE does, the options; the host that is named, and what else.
WRONG = {
    "it refuses": (f"echo {REFUSED} >&2; exit 255", {}, "other", [REFUSED, "REMOTE"]),
    "no such command": ("", {"remote": "no-such-ssh {host}"}, "other", ["no-such-ssh"]),
    "another torch": (ELSEWHERE, {}, "other", ["1.2.3"]),
    "no Horovod": (ELSEWHERE, {"mode": "horovod"}, "other", ["Horovod", "bench install-horovod"]),
    "a name that machines do not know": (ENTER, {"hosts": "localhost:1,no-such-name.invalid:1"}, "localhost",
                                         ["no-such-name.invalid", "HOSTS"]),
    "no such interface": (ENTER, {"hosts": BOTH_HERE, "iface": "ib7"}, "localhost", ["IFACE=ib7", "lo (127.0.0.1)"]),
    "a port that is taken": (ENTER, {"hosts": BOTH_HERE, "dist_url": "tcp://localhost:{port}"}, "localhost",
                             ["DIST_URL=tcp://localhost:{port}"]),
}  # fmt: skip
# A start-up file of Python's, with which Horovod is not found.
NO_HOROVOD = """
import importlib.metadata as found
version = found.version
def without(name):
    if name == "horovod":
        raise found.PackageNotFoundError(name)
    return version(name)
found.version = without
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[runs.needs_horovod] * ("Horovod" in name)) for name in WRONG]
)
def test_a_run_that_cannot_begin_names_the_machine(name, enter, tmp_path):
    script, options, host, words = WRONG[name]
    if name == "no Horovod":
        (tmp_path / "sitecustomize.py").write_text(NO_HOROVOD)
    else:
        (tmp_path / "torch").mkdir()  # of ELSEWHERE
        (tmp_path / "torch" / "__init__.py").touch()
        (tmp_path / "torch" / "version.py").write_text("__version__ = '1.2.3'\ncuda: Optional[str] = None\n")
    config = {"mode": "ddp", "num_devices": 2, "hosts": HOSTS, "device": "cpu", "timeout": 60, "remote": enter(script)}
    with socket.socket() as busy, pytest.raises(RunFailed) as failed:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        options = {key: value.replace("{port}", port) for key, value in options.items()}
        launcher.launch(launcher.resolve_here(RunConfig(**config | options | {"out": str(tmp_path / "out")})))
    (path,) = (tmp_path / "out").glob("*/record.json")
    record = json.loads(path.read_text())
    message = record["failure"]["message"]
    assert record["status"] == "failed" and record["failure"]["kind"] == "launcher"
    assert message.startswith(f"host {host} (rank ") and "\n" not in str(failed.value)
    assert all(word.replace("{port}", port) in message for word in words), message
    assert not on_machines()


def test_a_machine_whose_own_name_does_not_lead_to_its_address_is_told_what_to_write(monkeypatch):
    """Horovod's ranks would die there without a word."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert machine.answers_to_its_name("127.0.0.1") == ""
    assert "`10.0.0.1 localhost`" in machine.answers_to_its_name("10.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    assert "`10.0.0.1 no-such-name.invalid`" in machine.answers_to_its_name("10.0.0.1")


def test_what_was_started_ends_when_nobody_asks_any_more(tmp_path, enter):
    config = resolve(RunConfig(hosts=BOTH_HERE, num_devices=2, remote=enter(ENTER), timeout=60), "cpu", 2)
    there = hosts.Machine("127.0.0.1", range(1, 2), config, here=False)
    placement = {"ranks": [1, 2], "number": 1, "count": 2, "host": "127.0.0.1", "address": "127.0.0.1", "iface": "lo",
                 "port": 1, "joins": True}  # fmt: skip
    folder = there.ask("place", placement=placement, others=[], config=to_dict(config), run_dir="/nowhere", mark="")
    there.ask("start", since_s=0.0, variables={})  # it waits for the first machine
    code, _ = there.ask("poll")
    assert code is None
    (process,) = on_machines()
    (engine,) = process.children()
    runs.wait_for(lambda: "BENCH_NODE" in engine.environ(), "the engine has begun", 30)  # after its fork
    assert engine.environ()["BENCH_NODE"] == "127.0.0.1" and engine.environ()["GLOO_SOCKET_IFNAME"] == "lo"
    there.tree.process.stdin.close()  # as when the first machine is gone
    psutil.wait_procs([process, engine], 20)
    assert not process.is_running() and not engine.is_running() and not Path(folder).exists()
    there.close()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a folder of its own needs root: unshare")
def test_what_ranks_leave_comes_home_where_no_file_is_shared(tmp_path, enter, forked_programs):
    """No rank is on this machine."""
    (tmp_path / "out").mkdir()
    hide = f'mount -t tmpfs none "{tmp_path}/out" && exec "$@"'
    remote = enter(f"host=$1; shift\nexec unshare --mount sh -c '{hide}' sh \"$@\"")
    config = runs.SMALL | {"mode": "ddp", "hosts": "other:1,127.0.0.1:1", "remote": remote, "snapshots": "2"}
    result = runs.run(tmp_path / "out", copies=forked_programs, **config).ok()
    names = {path.name for path in result.run_dir.iterdir()}
    logs = {"rank0.log", "rank1.log", "launcher.log", "launcher1.log"}
    assert names == {"record.json", "rank0-step2.npz", "rank1-step2.npz"} | logs


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exec sleep 100", "1 s"),
        ("exec yes", "1 s"),
        ("exec tr '\\0' x < /dev/zero", "1 s"),  # a line without end
        ("while :; do echo '[[[['; echo '{}' '[1]' 7 null '\"x\"'; done", "1 s"),
        ("yes '[' | tr -d '\\n' | head -c 300000; echo; echo '{\"id\": 1}'; exec sleep 50", "1 s"),
        ("head -c 100000 /dev/zero | tr '\\0' y; exit 3", "yyy"),
    ],
    ids=["silent", "yes", "no end", "junk", "no answer", "long"],
)
def test_a_machine_that_talks_and_does_not_answer_is_not_waited_for(script, says, enter):
    config = RunConfig(hosts=HOSTS, num_devices=2, remote=enter(script), timeout=1)
    other = hosts.Machine("other", range(1, 2), config, here=False)
    with contextlib.closing(other), pytest.raises(RunFailed) as failed:
        other.ask("unreachable")
    assert says in str(failed.value) and "other" in str(failed.value) and len(str(failed.value)) < 1500
    assert other.tree.process.poll() is not None


def test_a_command_that_is_none_is_refused_before():
    with pytest.raises(UserError, match="REMOTE=ssh "):
        RunConfig(hosts=HOSTS, num_devices=2, remote='ssh "unbalanced {host}')
