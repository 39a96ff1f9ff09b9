"""`bench cluster`: namespaces as nodes, links of a rate, and nothing left of it."""

import contextlib
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.__main__ import INSTALLS
from tests import runs
from tests.cluster import on

# Sends MEGABYTES over a TCP connection and prints the rate in Mbit/s, until the other side has it all: five times, and
# up to thirty while no rate is above ENOUGH. Then it connects once more, and sends nothing.
SENDER = """
import socket, sys, time
name, size, enough, rates = sys.argv[1], int(float(sys.argv[2]) * 1e6), float(sys.argv[3]), []
while len(rates) < 5 or (max(rates) < enough and len(rates) < 30):
    with socket.create_connection((name, 9000), timeout=60) as link:
        started = time.monotonic()
        link.sendall(bytes(size))
        link.shutdown(socket.SHUT_WR)
        assert link.recv(1)
        rates.append(size * 8 / 1e6 / (time.monotonic() - started))
        print(rates[-1])
socket.create_connection((name, 9000), timeout=60).close()
"""
RECEIVER = """
import socket
with socket.create_server(("", 9000)) as server:
    print("listening", flush=True)
    received = 1
    while received:
        link, received = server.accept()[0], 0
        while piece := link.recv(1 << 20):
            received += len(piece)
        if received:
            link.sendall(b"x")
"""


def transfer(folder: Path, megabytes: float, enough: float) -> str:
    """A shell command that measures the way from node1 to node2. enough: the rate that one transfer has in any case."""
    (folder / "send.py").write_text(SENDER)
    (folder / "receive.py").write_text(RECEIVER)
    receive = on("node2", sys.executable, folder / "receive.py")
    return f"{receive} | {{ read listening; {sys.executable} {folder}/send.py node2 {megabytes} {enough}; }}"


def network() -> tuple:
    """What of the machine's own network a cluster might leave something in."""
    named = Path("/run/netns")
    return sorted(os.listdir("/sys/class/net")), sorted(os.listdir(named)) if named.is_dir() else []


def test_nodes_have_names_addresses_and_cores_of_their_own(cluster):
    show = "hostname; getent ahostsv4 $(hostname) | head -1; getent hosts 10.99.0.1; ip -brief address show eth0"
    before = network()
    result = cluster(f"{show}; {on('node2', 'sh', '-c', show)}; env | grep ^BENCH_; cat $BENCH_CLUSTER/*.json; exit 7",
                     link="100mbit", per_node=3)  # fmt: skip
    assert result.code == 7, result.stderr
    words = [line.split() for line in result.stdout.splitlines()]
    first, second, rest = words[:4], words[4:8], words[8:]
    assert first[:3] == [["node1"], ["10.99.0.1", "STREAM", "node1"], ["10.99.0.1", "node1"]]
    assert second[:3] == [["node2"], ["10.99.0.2", "STREAM", "node2"], ["10.99.0.1", "node1"]]
    assert (first[3][0].partition("@")[0], first[3][2]) == ("eth0", "10.99.0.1/24")
    assert (second[3][0].partition("@")[0], second[3][2]) == ("eth0", "10.99.0.2/24")
    variables = dict(" ".join(line).split("=", 1) for line in rest[:-1])
    label = "2 namespaces of one machine, links limited to 100 Mbit/s"
    assert variables["BENCH_HOSTS"] == "node1:3,node2:3" and variables["BENCH_IFACE"] == "eth0"
    assert variables["BENCH_NETWORK"] == label and variables["BENCH_LINK_MBIT"] == "100"
    described = json.loads(" ".join(rest[-1]))
    assert described["label"] == label and described["links"]["rate_mbit"] == 100
    assert [node["name"] for node in described["nodes"]] == ["node1", "node2"]
    assert result.stderr.startswith(f"cluster: {label}; ") and "core" in result.stderr.splitlines()[0]
    assert network() == before and not Path(variables["BENCH_CLUSTER"]).exists()


def test_the_machines_own_name_is_the_nodes_address(cluster):
    """Horovod takes the address of its host's name for that of its node."""
    name = os.uname().nodename
    result = cluster(on("node2", "getent", "ahostsv4", name))
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"10.99.0.2"}, result.stderr


@pytest.mark.parametrize("rate, megabytes", [(100, 4), (20, 0.8)])
def test_a_link_has_its_rate(cluster, tmp_path, rate, megabytes):
    """Never more than that; a busy machine may take its time over some of the transfers."""
    result = cluster(transfer(tmp_path, megabytes, 0.9 * rate), link=f"{rate}mbit")
    assert result.code == 0, result.stderr
    rates = [float(line) for line in result.stdout.split()]
    assert 0.9 * rate < max(rates) < 1.1 * rate


def test_without_a_rate_links_are_much_faster(cluster, tmp_path):
    result = cluster(transfer(tmp_path, 20, 500))
    assert result.code == 0, result.stderr
    assert max(map(float, result.stdout.split())) > 500


def test_make_works_inside(cluster, tmp_path):
    """The variables of the make that started the cluster are not those of a make in the command."""
    (tmp_path / "Makefile").write_text("all:\n\t@echo nodes=$(NODES) link=$(LINK) flags=$(MAKEFLAGS)\n")
    env = {"MAKEFLAGS": " -- NODES=2 LINK=10mbit CMD=x", "NODES": "2", "LINK": "10mbit", "CMD": "x", "MAKELEVEL": "1"}
    result = cluster(f"make -C {tmp_path} --no-print-directory", env=env)
    assert result.stdout.split() == ["nodes=", "link=", "flags=", "--no-print-directory"], result.stderr


def test_enter_says_what_it_cannot_do(cluster):
    result = cluster(f"{on('node9', 'true')}; echo $?; {on('node2')}; echo $?; {on('node2', 'false')}; echo $?")
    assert result.stdout.split() == ["255", "255", "1"]
    assert "enter: no node 'node9' in this cluster: there are node1, node2" in result.stderr
    outside = runs.finish(runs.start("node1", "true", module="bench.cluster.enter"))
    assert outside.code == 255 and "not inside a cluster" in outside.stderr


# The command says what it is told, and takes its time to end; a child of it leaves its session.
TRAP = (
    "trap 'echo told; sleep 0.2; echo ended; exit 9' INT TERM; setsid sleep 654.5 & "
    "echo up $BENCH_CLUSTER; while :; do sleep 0.1; done"
)


# The signal, what follows the command, and the exit code. A shell with more to do is gone before what it waits for.
ENDINGS = {
    "Ctrl-C": (signal.SIGINT, "", 9),
    "terminated": (signal.SIGTERM, "", 9),
    "killed": (signal.SIGKILL, "", -signal.SIGKILL),
    "two commands, terminated": (signal.SIGTERM, "; echo and more", 128 + signal.SIGTERM),
    "make killed": (signal.SIGKILL, "", -signal.SIGKILL),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_after_a_signal(cluster, ending):
    """The command is told to end first, and may tidy up: also where nobody is left who could tell it."""
    number, more, code = ENDINGS[ending]
    before = network()
    words = runs.flags(cmd=shlex.join(["sh", "-c", TRAP]) + more if more else TRAP)
    process = by_make("cluster", *words) if ending == "make killed" else runs.start("cluster", *words)
    folder = Path(process.stdout.readline().split()[1])
    inside = psutil.Process(process.pid).children(recursive=True)
    assert len(inside) > 4
    process.send_signal(number)
    result = runs.finish(process, timeout=150)
    assert (result.code, result.stdout) == (code, "told\nended\n")
    assert not psutil.wait_procs(inside, timeout=60)[1]
    assert not [each.pid for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "654.5"]]
    runs.wait_for(lambda: not folder.exists() and network() == before, "its folder and devices are gone", 60)


def by_make(*words: str) -> subprocess.Popen:
    """``bench`` below a process that stands where make does; make's own set-up takes its time."""
    program = [sys.executable, "-m", "bench", *words]
    code = f"import subprocess; subprocess.run({program!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=runs.ROOT, env=os.environ | {INSTALLS: "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ctrl_c_is_the_commands(cluster):
    """At a terminal, which the command has; Ctrl-Z is nothing there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(runs.ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "bench", "cluster", "--cmd", TRAP])
    shown = b""
    with contextlib.suppress(OSError):  # how the end of a terminal reads
        while piece := os.read(terminal, 1000):
            if b"up" in piece:
                os.write(terminal, b"\x1a\x03")
            shown += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert shown.split(b"^C")[-1].split() == [b"told", b"ended"]


def test_a_command_that_is_killed(cluster):
    assert cluster("kill -9 $$").code == 128 + signal.SIGKILL


def test_an_ordinary_user_has_it_too(cluster):
    """In a user namespace. As root the test takes the user nobody, and a Python that this user may run."""
    if os.geteuid() != 0:
        pytest.skip("all the other tests are an ordinary user's already")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nowhere"]

    def run_by_nobody(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([*nobody, *words], cwd=runs.ROOT, capture_output=True, text=True, timeout=150)

    pythons = [sys.executable, "/usr/bin/python3"] if shutil.which("setpriv") else []
    python = next((each for each in pythons if run_by_nobody(each, "-m", "bench", "help").returncode == 0), None)
    if python is None:
        pytest.skip("no Python here that the user nobody may run, or no setpriv")
    show = "id -u; $(echo $BENCH_REMOTE | sed s/{host}/node2/) hostname"
    result = run_by_nobody(python, "-m", "bench", "cluster", "--link=50mbit", "--cmd", show)
    if "no network namespaces here" in result.stderr:
        pytest.skip(result.stderr)
    assert (result.returncode, result.stdout.split()) == (0, ["0", "node2"]), result.stderr


@pytest.mark.parametrize(
    "options, message",
    [
        ({"nodes": "1"}, "NODES=1: a whole number from 2 to 64"),
        ({"nodes": "1000"}, "NODES=1000: a whole number from 2 to 64"),
        ({"per_node": "0"}, "PER_NODE=0: a whole number, at least 1"),
        ({"link": "fast"}, "LINK=fast: a rate from 100kbit to 10gbit"),
        ({"link": "1gbit,5"}, "LINK=1gbit,5: a rate"),
        ({"loss": "99%"}, "LOSS=99%: not a loss rate up to 50 %"),
        ({"cmd": ""}, "CMD=… is needed"),
    ],
)
def test_bad_input_is_one_line_before_anything(options, message):
    result = runs.bench("cluster", *runs.flags(**{"cmd": "echo ran"} | options))
    assert result.code == 2 and result.stdout == ""
    assert result.stderr.startswith(f"bench: {message}") and result.stderr.count("\n") == 1


def test_what_is_missing_is_one_line(cluster, tmp_path):
    """No iproute2; a kernel without netem, or one that has it."""
    for tool in ("unshare", "nsenter", "mount"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = cluster("echo ran", env={"PATH": str(tmp_path)})
    assert (result.code, result.stdout) == (2, "")
    assert (
        result.last_error_line
        == "bench: `ip` is not installed: install the package iproute2 (apt-get install iproute2)"
    )
    result = cluster("echo ran", link="1gbit,5ms")
    if result.code:
        assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "LINK" in result.stderr and "sch_netem" in result.stderr


def test_no_cluster_in_a_cluster(cluster):
    result = cluster(f"{sys.executable} -m bench cluster --cmd true")
    assert result.code == 2 and "inside a cluster already" in result.stderr
