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

from bench import __main__ as cli
from tests import runs
from tests.cluster import on

# Sends MEGABYTES over a TCP connection and prints the rate in Mbit/s, until the other side has it all: three times, and
# up to thirty while no rate is above ENOUGH. Then it connects once more, and sends nothing.
SENDER = """
import socket, sys, time
name, size, enough, rates = "node2", int(float(sys.argv[1]) * 1e6), float(sys.argv[2]), []
while len(rates) < 3 or (max(rates) < enough and len(rates) < 30):
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


def network() -> tuple:
    """What of the machine's own network a cluster might leave something in."""
    named = Path("/run/netns")
    return sorted(os.listdir("/sys/class/net")), sorted(os.listdir(named)) if named.is_dir() else []


def test_nodes_have_names_addresses_and_variables(cluster):
    """Horovod takes the address of its host's name for that of its node. A make in the command has not the variables of
    the make that started the cluster."""
    own = os.uname().nodename
    show = f"hostname; for name in $(hostname) {own} node1; do getent ahostsv4 $name | head -1; done"
    show += "; ip -brief address show eth0"
    describe = "env | grep -e ^BENCH_ -e ^MAKE -e ^NODES; cat $BENCH_CLUSTER/*.json; kill -9 $$"
    before, outside = network(), {"MAKEFLAGS": " -- NODES=2", "NODES": "2", "MAKELEVEL": "1"}
    result = cluster(f"{show}; {on('node2', 'sh', '-c', show)}; {describe}", env=outside, link="100mbit", per_node=3)
    assert result.code == 128 + signal.SIGKILL, result.stderr
    lines = result.stdout.splitlines()
    for number, (name, itself, named, first, interface) in enumerate((lines[:5], lines[5:10]), start=1):
        address = f"10.99.0.{number}"
        assert name == f"node{number}" and {itself.split()[0], named.split()[0]} == {address}
        assert first.split()[0] == "10.99.0.1" and interface.split()[2] == f"{address}/24"
    variables = dict(line.split("=", 1) for line in lines[10:-1])
    described = json.loads(lines[-1])
    label = variables["BENCH_NETWORK"]
    assert variables["BENCH_HOSTS"] == "node1:3,node2:3" and variables["BENCH_IFACE"] == "eth0"
    assert "100 Mbit/s" in label and variables["BENCH_LINK_MBIT"] == "100" and label in result.stderr
    assert all(name.startswith("BENCH_") for name in variables)
    assert described["label"] == label and described["links"]["rate_mbit"] == 100
    assert [node["name"] for node in described["nodes"]] == ["node1", "node2"]
    assert network() == before and not Path(variables["BENCH_CLUSTER"]).exists()


@pytest.mark.parametrize(("rate", "megabytes"), [(100, 4), (20, 0.8), (None, 20)])
def test_a_link_has_its_rate(cluster, tmp_path, rate, megabytes):
    """Never more than that; a busy machine may take its time over some of the transfers. Without a rate, much more."""
    least = 0.9 * rate if rate else 500
    (tmp_path / "send.py").write_text(SENDER)
    (tmp_path / "receive.py").write_text(RECEIVER)
    receive = on("node2", sys.executable, tmp_path / "receive.py")
    command = f"{receive} | {{ read listening; {sys.executable} {tmp_path}/send.py {megabytes} {least}; }}"
    result = cluster(command, link=rate and f"{rate}mbit").ok()
    rates = [float(line) for line in result.stdout.split()]
    assert least < max(rates) and (rate is None or max(rates) < 1.1 * rate)


def test_enter_says_what_it_cannot_do(cluster):
    asked = [on("node9", "true"), on("node2"), on("node2", "false")]
    again = f"{sys.executable} -m bench cluster --cmd true"
    result = cluster("".join(f"{command}; echo $?; " for command in asked) + again)
    assert result.stdout.split() == ["255", "255", "1"] and "'node9'" in result.stderr
    assert result.code == 2  # no cluster in a cluster
    assert runs.finish(runs.start("node1", "true", module="bench.cluster.enter")).code == 255  # nor outside


# The command prints the signal that it gets, and takes its time to end; a child of it leaves its session.
TRAP = (
    "trap 'echo told; sleep 0.2; echo ended; exit 9' INT TERM; setsid sleep 654.5 & "
    "echo up $BENCH_CLUSTER; while :; do sleep 0.1; done"
)
# The signal, what follows the command, and the exit code. A shell with more to do is gone before what it waits for.
ENDINGS = {
    "terminated": (signal.SIGTERM, "", 9),
    "killed": (signal.SIGKILL, "", -signal.SIGKILL),
    "two commands, terminated": (signal.SIGTERM, "; echo and more", 128 + signal.SIGTERM),
    "make killed": (signal.SIGKILL, "", -signal.SIGKILL),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_after_a_signal(cluster, ending):
    """The command gets a SIGTERM first, and may tidy up: also where nobody is left who could tell it."""
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
        [sys.executable, "-c", code], cwd=runs.ROOT, env=os.environ | {cli.INSTALLS: "1"}, stdin=subprocess.DEVNULL,
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
    "options",
    [{"nodes": "1"}, {"nodes": "1000"}, {"per_node": "0"}, {"link": "fast"}, {"link": "1gbit,5"}, {"loss": "99%"}],
)
def test_bad_input_is_one_line_before_anything(options, capsys):
    (name, value), *_ = options.items()
    assert cli.main(["cluster", *runs.flags(cmd="echo ran", **options)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"{name.upper()}={value}" in said.err and said.err.count("\n") == 1


def test_what_is_missing_is_one_line(cluster, tmp_path):
    """No iproute2; a kernel without netem, or one that has it."""
    for tool in ("unshare", "nsenter", "mount"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = cluster("echo ran", env={"PATH": str(tmp_path)})
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1) and "iproute2" in result.stderr
    result = cluster("echo ran", link="1gbit,5ms")
    if result.code:
        assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "LINK" in result.stderr and "sch_netem" in result.stderr
