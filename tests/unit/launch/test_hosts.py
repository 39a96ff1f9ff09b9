"""bench/launch/hosts.py and machine.py: what is wrong with a machine is said before a rank is started.

The machines are two names of this one; REMOTE is a small script that stands where ssh would.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from pathlib import Path

import psutil
import pytest

from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.errors import RunFailed, UserError
from bench.launch import hosts, launcher, machine
from tests import runs

pytestmark = pytest.mark.slow

HOSTS = "localhost:1,other:1"
ENTER = '#!/bin/sh\nhost=$1; shift\nexec "$@"\n'  # argv: env PYTHONPATH=… python -m bench.launch.machine FOLDER
# Other things are found there than here: the folder of this script comes first on Python's path.
ELSEWHERE = (
    '#!/bin/sh\nhost=$1; shift; path=${2#PYTHONPATH=}; shift 2; cd /\nPYTHONPATH=$(dirname "$0"):$path exec "$@"\n'
)


@pytest.fixture
def enter(tmp_path):
    """Makes a REMOTE of a script."""

    def make(script: str) -> str:
        path = tmp_path / "enter"
        path.write_text(script)
        path.chmod(0o755)
        return f"{path} {{host}}"

    return make


def refused(tmp_path, host: str = "other", **options) -> str:
    """What is said of a run that cannot begin; its record says so, and names the machine."""
    config = {"mode": "ddp", "num_devices": 2, "hosts": HOSTS, "device": "cpu", "timeout": 60}
    config |= {"out": str(tmp_path / "out")}
    started = time.monotonic()
    with pytest.raises(RunFailed) as failed:
        launcher.launch(launcher.resolve_here(RunConfig(**config | options)))
    assert time.monotonic() - started < 60
    (path,) = (tmp_path / "out").glob("*/record.json")
    record = json.loads(path.read_text())
    assert record["status"] == "failed" and record["failure"]["kind"] == "launcher"
    assert record["failure"]["message"].startswith(f"host {host} (rank ") and "\n" not in str(failed.value)
    assert not on_machines()
    return record["failure"]["message"]


def on_machines() -> list[psutil.Process]:
    """What this process has started on machines and is still there."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [process] if "bench.launch.machine" in " ".join(process.cmdline()) else []
    return found


def test_a_machine_that_refuses_or_is_not_known_is_named_with_what_remote_said(tmp_path, enter):
    says = "ssh: connect to host other port 22: Connection refused"
    message = refused(tmp_path, remote=enter(f"#!/bin/sh\necho {says} >&2\nexit 255\n"))
    assert says in message and "check that the machine is up" in message and "REMOTE" in message


def test_a_command_that_is_not_there(tmp_path):
    assert "no-such-ssh does not run" in refused(tmp_path, remote="no-such-ssh {host}")


def test_a_machine_that_does_not_answer_is_waited_for_no_longer_than_the_limit(tmp_path, enter):
    message = refused(tmp_path, remote=enter("#!/bin/sh\nexec sleep 100\n"), timeout=5)
    assert "does not answer within 5 s" in message and "leave it out of HOSTS" in message


def test_other_code_on_a_machine(tmp_path, enter):
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(hosts.__file__).parents[1], tmp_path / "bench", ignore=leave_out)
    (tmp_path / "bench" / "one_more.py").touch()
    message = refused(tmp_path, remote=enter(ELSEWHERE))
    assert "code of bench is " in message and "bring the same code there" in message


def test_another_torch_on_a_machine(tmp_path, enter):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '1.2.3'\ncuda: Optional[str] = None\n")
    message = refused(tmp_path, remote=enter(ELSEWHERE))
    assert "torch is 1.2.3 there" in message and "install the same torch there" in message


def test_no_horovod_on_a_machine(tmp_path, enter):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as found\nversion = found.version\ndef without(name):\n"
        "    if name == 'horovod':\n        raise found.PackageNotFoundError(name)\n    return version(name)\n"
        "found.version = without\n"
    )
    message = refused(tmp_path, remote=enter(ELSEWHERE), mode="horovod", launcher="horovodrun")
    assert "Horovod is not installed there" in message and "bench install-horovod" in message


def test_a_name_that_the_machines_do_not_know(tmp_path, enter):
    message = refused(tmp_path, "localhost", remote=enter(ENTER), hosts="localhost:1,no-such-name.invalid:1")
    assert "finds no route to no-such-name.invalid" in message and "HOSTS" in message


BOTH_HERE = "localhost:1,127.0.0.1:1"


def test_an_interface_that_is_not_there(tmp_path, enter):
    message = refused(tmp_path, "localhost", remote=enter(ENTER), hosts=BOTH_HERE, iface="ib7")
    assert "no interface IFACE=ib7" in message and "lo (127.0.0.1)" in message


def test_a_port_that_is_taken(tmp_path, enter):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        url = f"tcp://localhost:{busy.getsockname()[1]}"
        message = refused(tmp_path, "localhost", remote=enter(ENTER), hosts=BOTH_HERE, dist_url=url)
    assert "cannot be used" in message and "choose another" in message


def test_a_machine_whose_own_name_does_not_lead_to_its_address_is_told_what_to_write(monkeypatch):
    """Horovod's ranks would die there without a word."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert machine.answers_to_its_name("127.0.0.1") == ""
    assert "`10.0.0.1 localhost` to /etc/hosts" in machine.answers_to_its_name("10.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    assert "does not resolve there" in machine.answers_to_its_name("10.0.0.1")


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
def test_what_ranks_leave_comes_home_where_no_file_is_shared(tmp_path, enter):
    """No rank is on this machine."""
    (tmp_path / "out").mkdir()
    hide = f'mount -t tmpfs none "{tmp_path}/out" && exec "$@"'
    remote = enter(f"#!/bin/sh\nhost=$1; shift\nexec unshare --mount sh -c '{hide}' sh \"$@\"\n")
    config = runs.SMALL | {"mode": "ddp", "hosts": "other:1,127.0.0.1:1", "remote": remote, "snapshots": "2"}
    result = runs.run(tmp_path / "out", **config)
    assert result.code == 0, result.stderr
    names = {path.name for path in result.run_dir.iterdir()}
    logs = {"rank0.log", "rank1.log", "launcher.log", "launcher1.log"}
    assert names == {"record.json", "rank0-step2.npz", "rank1-step2.npz"} | logs


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exec yes", "does not answer within 1 s"),
        ("exec tr '\\0' x < /dev/zero", "does not answer within 1 s"),  # a line without end
        ("while :; do echo '[[[['; echo '{}' '[1]' 7 null '\"x\"'; done", "does not answer within 1 s"),
        ("yes '[' | tr -d '\\n' | head -c 300000; echo; exec sleep 50", "does not answer within 1 s"),
        ("echo '{\"id\": 1}'; exec sleep 50", "does not answer within 1 s"),
        ("head -c 100000 /dev/zero | tr '\\0' y; exit 3", "did not start ranks there: yyy"),
    ],
    ids=["yes", "no end", "junk", "brackets", "no answer", "long"],
)
def test_a_machine_that_talks_and_does_not_answer_is_not_waited_for(script, says, enter):
    config = RunConfig(hosts=HOSTS, num_devices=2, remote=enter(f"#!/bin/sh\n{script}\n"), timeout=1)
    other = hosts.Machine("other", range(1, 2), config, here=False)
    try:
        with pytest.raises(RunFailed) as failed:
            other.ask("unreachable")
    finally:
        other.close()
    assert says in str(failed.value) and len(str(failed.value)) < 1500
    assert other.tree.process.poll() is not None


def test_a_command_that_is_none_is_refused_before():
    with pytest.raises(UserError, match=r"REMOTE=ssh .* closing quotation"):
        RunConfig(hosts=HOSTS, num_devices=2, remote='ssh "unbalanced {host}')
