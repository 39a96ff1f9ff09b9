"""bench/launch/hosts/remote.py and agent.py where no rank is needed: what is wrong with a machine is said before one.

The machines are two names of this one; REMOTE is a small script that stands where ssh would.
"""

import contextlib
import json
import shutil
import socket
import time
from pathlib import Path

import psutil
import pytest

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import RunFailed, UserError
from bench.launch import launcher, machine
from bench.launch.hosts import remote
from tests import runs

pytestmark = pytest.mark.slow

HOSTS = "localhost:1,other:1"
ENTER = '#!/bin/sh\nhost=$1; shift\nexec "$@"\n'  # argv: env PYTHONPATH=… python -m bench.launch.agent FOLDER
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
    assert not agents()
    return record["failure"]["message"]


def agents() -> list[psutil.Process]:
    """The agents that this process has started and are still there."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [process] if "bench.launch.agent" in " ".join(process.cmdline()) else []
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
    shutil.copytree(Path(remote.__file__).parents[2], tmp_path / "bench", ignore=leave_out)
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
    assert "`10.0.0.1 localhost` in /etc/hosts" in machine.answers_to_its_name("10.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    assert "is not known there" in machine.answers_to_its_name("10.0.0.1")


def test_the_agent_ends_what_it_has_started_when_nobody_asks_any_more(tmp_path, enter):
    config = RunConfig(hosts=BOTH_HERE, num_devices=2, remote=enter(ENTER), timeout=60)
    channel = remote.Channel("127.0.0.1", config, 1, here=False)
    channel.run_dir = tmp_path
    place = {"ranks": [1, 2], "number": 1, "count": 2, "host": "127.0.0.1", "address": "127.0.0.1", "iface": "lo"}
    whole = remote.to_dict(resolve(config, "cpu", 2))
    argv, environment = channel.ask("command", config=whole, placement=place, run_dir=None, since_s=0.0)
    there = Path(argv[argv.index("--log-dir") + 1]).parent
    program = f"echo it runs; echo '\"rank 1\"' > {there}/rank1.log; exec sleep 1000"
    channel.ask("start", argv=["sh", "-c", program], environment=environment)
    logs = [tmp_path / name for name in ("rank1.log", "launcher1.log")]
    runs.wait_for(lambda: all(log.exists() and log.read_text() for log in logs), "the logs come")
    assert (tmp_path / "rank1.log").read_text() == '"rank 1"\n'
    assert (tmp_path / "launcher1.log").read_text() == "it runs\n"
    assert environment["BENCH_NODE"] == "127.0.0.1" and environment["GLOO_SOCKET_IFNAME"] == "lo"
    (agent,) = agents()
    (sleeper,) = agent.children()
    channel.process.stdin.close()  # as when the first machine is gone
    psutil.wait_procs([agent, sleeper], 20)
    assert not agent.is_running() and not sleeper.is_running() and not there.exists()
    channel.close()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exec yes", "does not answer within 1 s"),
        ("exec yes '{\"alive\": true}'", "does not answer within 1 s"),
        ("exec tr '\\0' x < /dev/zero", "does not answer within 1 s"),  # a line without end
        ("while :; do echo '[[[['; echo '{}' '[1]' 7 null '\"x\"'; done", "does not answer within 1 s"),
        ("while :; do echo '{\"file\": \"x\", \"at\": 0, \"data\": \"YQ==\"}'; done", "does not answer within 1 s"),
        ("yes '[' | tr -d '\\n' | head -c 300000; echo; exec sleep 50", "does not answer within 1 s"),
        ("echo '{\"id\": 1}'; exec sleep 50", "does not answer within 1 s"),
        ("echo '{\"id\": 1, \"answer\": null}'; exec sleep 50", "answers to describe what no agent does: None"),
        ("echo '{\"id\": 1, \"answer\": {\"cpus\": [\"x\"]}}'; exec sleep 50", "answers to describe what"),
        ("echo '{\"id\": 1, \"refused\": 7}'; exec sleep 50", "does not answer within 1 s"),
        ("head -c 100000 /dev/zero | tr '\\0' y; exit 3", "starts no agent there: yyy"),
    ],
    ids=["yes", "alive", "no end", "junk", "a file again and again", "brackets", "no answer", "null", "form", "refused",
         "long"],
)  # fmt: skip
def test_a_machine_that_talks_and_is_no_agent_is_not_waited_for(script, says, tmp_path, enter):
    config = RunConfig(hosts=HOSTS, num_devices=2, remote=enter(f"#!/bin/sh\n{script}\n"), timeout=1)
    channel = remote.Channel("other", config, 1, here=False)
    channel.run_dir = tmp_path if "file" in script else None
    try:
        with pytest.raises(RunFailed) as failed:
            channel.ask("describe")
    finally:
        channel.close()
    assert says in str(failed.value) and len(str(failed.value)) < 1500
    assert channel.process.poll() is not None


def test_a_command_that_is_none_is_refused_before():
    with pytest.raises(UserError, match=r"REMOTE=ssh .* closing quotation"):
        RunConfig(hosts=HOSTS, num_devices=2, remote='ssh "unbalanced {host}')
