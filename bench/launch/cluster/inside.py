"""The first process of a cluster's PID namespace: builds the network, runs the command on the first node, and ends.

Nodes are joined as by a switch: a bridge, and to each node a veth pair whose far end is its eth0. `tbf` limits what
either end sends, so a link has its rate in each direction; `netem` on the node's end delays and loses.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench.errors import UserError
from bench.launch.cluster.plan import Cluster, usable

GRACE_S = 30.0  # for a command that was told to end
STEP_S = 30.0  # for one step of the building
TICK_S = 0.05
QUEUE_MS = 200  # of a switch: what it holds before it drops
BURST_MS = 2  # what a link may send at once after a pause, of its rate
SMALLEST_BURST = 16 * 1024  # bytes


def main(words: list[str]) -> int:
    """Build, run, and return the command's exit code. words: the cluster's folder, its plan as JSON, the command, and
    the descriptors of the pipe from outside and of the terminal, if the command is to have it."""
    folder, plan, command, pipe = Path(words[0]), Cluster(**json.loads(words[1])), words[2], int(words[3])
    terminal = int(words[4]) if words[4:] else None
    try:
        build(plan, folder)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    enter = [sys.executable, "-m", "bench.launch.cluster.enter", plan.names[0], "sh", "-c", command]
    child, told = subprocess.Popen(enter, preexec_fn=lambda: take(terminal)), threading.Event()
    threading.Thread(target=obey, args=(pipe, child.pid, folder, told), daemon=True).start()
    pid = None
    while pid != child.pid:  # the first process of a PID namespace is the parent of all that have lost theirs
        pid, status = os.wait()
    while told.is_set() and is_there(child.pid):  # a shell that is told to end leaves what it has waited for
        time.sleep(TICK_S)
    shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def take(terminal: int | None) -> None:
    """In the command, before it begins: a process group of its own, which has the terminal. Ctrl-Z does nothing there:
    nobody could continue a cluster that stands still."""
    os.setpgrp()
    if terminal is not None:
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(terminal, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)


def obey(pipe: int, command: int, folder: Path, told: threading.Event) -> None:
    """Pass the signals that come through the pipe on to the command's process group; when the pipe is closed, the
    process outside is gone, and the command is told to end. What is not gone some time after a signal, is killed."""

    def tell(number: int) -> None:
        told.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command, number)
        threading.Thread(target=end_after, args=(GRACE_S, 128 + number, folder), daemon=True).start()

    while number := os.read(pipe, 1):
        tell(number[0])
    tell(signal.SIGTERM)


def is_there(group: int) -> bool:
    """Whether a process of this group has not ended yet."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_after(seconds: float, code: int, folder: Path) -> None:
    """End this process, and with it the namespace."""
    time.sleep(seconds)
    print(f"bench: the command has not ended within {seconds:g} s: killed", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def build(plan: Cluster, folder: Path) -> None:
    """Make the nodes and the network between them. Raises UserError when a step fails."""
    do("ip", "link", "add", "name", "switch", "type", "bridge")
    do("ip", "link", "set", "switch", "up")
    pids = [hold() for _ in plan.names]
    for number, (name, pid) in enumerate(zip(plan.names, pids, strict=True)):
        port, address = f"port{number + 1}", plan.addresses[number]
        do("ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        do("ip", "link", "set", port, "master", "switch", "up")
        hosts = folder / f"{name}.hosts"
        hosts.write_text(hosts_file(plan, address))
        for words in (
            ["hostname", name],
            ["mount", "--bind", str(hosts), "/etc/hosts"],
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "set", "eth0", "addrgenmode", "none"],  # no IPv6, which nothing here is asked for
            ["ip", "address", "add", f"{address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            *shaping(plan, "eth0", both=True),
        ):
            do("nsenter", "--target", str(pid), "--net", "--uts", "--mount", "--", *words)
        for words in shaping(plan, port, both=False):
            do(*words)
    plan.describe(folder, pids, plan.cores(usable()))


def hold() -> int:
    """Start the process that a node's namespaces live with; its pid, once they are there."""
    script = "echo; exec sleep infinity"
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", script],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    if holder.stdout.read(1) != b"\n":
        raise UserError("the cluster cannot be made: no namespaces for a node")
    return holder.pid


def hosts_file(plan: Cluster, own: str) -> str:
    """A node's /etc/hosts. The machine's name is the node's address, too: Horovod asks for it. torch asks for the names
    of addresses in IPv6's form."""
    named = list(zip(plan.addresses, plan.names, strict=True))
    rows = [f"{address} {name}" for address, name in [("127.0.0.1", "localhost"), *named, (own, os.uname().nodename)]]
    return "\n".join([*rows, *(f"::ffff:{address} {name}" for address, name in named), ""])


def shaping(plan: Cluster, device: str, both: bool) -> list[list[str]]:
    """The commands that limit what a device sends; ``both``: and delay and lose it.

    >>> shaping(Cluster(rate_mbit=100), "eth0", both=True)[0][5:]
    ['root', 'handle', '2:', 'tbf', 'rate', '100000kbit', 'burst', '25000', 'latency', '200ms']
    """
    place, commands = ["root"], []
    if both and plan.needs_netem:
        change = ["delay", f"{plan.latency_ms:g}ms"] if plan.latency_ms else []
        change += ["loss", f"{plan.loss_percent:g}%"] if plan.loss_percent else []
        commands = [["tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "netem", *change, "limit", "100000"]]
        place = ["parent", "1:1"]
    if plan.rate_mbit is not None:
        burst = max(SMALLEST_BURST, int(plan.rate_mbit * 125 * BURST_MS))  # 1 Mbit/s is 125 bytes a millisecond
        limit = ["rate", f"{plan.rate_mbit * 1000:.0f}kbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
        commands.append(["tc", "qdisc", "add", "dev", device, *place, "handle", "2:", "tbf", *limit])
    return commands


def do(*words: str) -> None:
    """Run one step of the building. Raises UserError with what it says when it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=STEP_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UserError(f"the cluster cannot be made: `{' '.join(words)}` takes more than {STEP_S:g} s") from None
    if done.returncode:
        raise UserError(f"the cluster cannot be made: `{' '.join(words)}`: {' '.join(done.stderr.split())}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
