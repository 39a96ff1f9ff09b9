"""Make a cluster. Everything is in a PID namespace whose first process is this file's ``main``: when that ends, the
kernel removes the rest. It ends when its pipe from outside closes, even by SIGKILL. Inside, nodes are joined by a
bridge with a veth pair each. `tbf` limits the rate in each direction; `netem` adds delay and loss."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.cluster.plan import CLUSTER, Cluster, usable
from bench.errors import UserError
from bench.files import LINUX, PROC, PROJECT
from bench.process.ending import handled
from bench.process.tree import Tree, capture

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount",
         "hostname": "hostname"}  # fmt: skip
NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
AS_ROOT_INSIDE = ["--user", "--map-root-user"]  # an ordinary user is root there, and nowhere else
NETEM = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
FORBIDDEN = {  # a kernel setting: the value that forbids namespaces, the one that allows them
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "10000"),
}
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DROPPED = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERMOUT", "MAKE_TERMERR",  # of the outer make
           "NODES", "PER_NODE", "LINK", "LOSS", "CMD"}  # fmt: skip
STEP_S = 30.0  # for one command of the building
GRACE_S = 30.0  # from a signal to SIGKILL
TICK_S = 0.05
QUEUE_MS = 200  # queued by a switch before it drops packets
BURST_MS = 2  # burst of a link after a pause
SMALLEST_BURST = 16 * 1024  # bytes


def run(cluster: Cluster, command: str) -> int:
    """Make the cluster, run a shell command on its first node, and remove it. Returns the command's exit code."""
    isolation = isolate()
    if cluster.needs_netem and (why := error_of_command([*isolation, *NETEM])):
        remedy = "run `modprobe sch_netem` as root, or leave them out; a rate works without"
        raise UserError(f"a latency in LINK, and LOSS, need the kernel's module sch_netem ({why}): {remedy}")
    cores = len(usable())
    share = f"{cores // cluster.nodes} of" if cores >= cluster.nodes else "a share of"
    print(f"cluster: {cluster.label()}; each node has {share} {cores} cores", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    reading, writing = os.pipe()
    try:
        forward = handled(lambda number, _: os.write(writing, bytes([number])), *FORWARDED)
        with forward, lent_terminal() as terminal, Tree() as tree:
            fds = [reading, *([terminal] if terminal else [])]
            inside = [sys.executable, "-m", "bench.cluster.make", str(folder), json.dumps(asdict(cluster))]
            tree.start(
                [*isolation, *inside, command, *map(str, fds)], environment(cluster, folder), stdin=None, pass_fds=fds,
                start_new_session=False, preexec_fn=os.setpgrp,
            )  # fmt: skip
            code = tree.wait()
        return 128 - code if code < 0 else code
    finally:
        os.close(writing)
        os.close(reading)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def lent_terminal() -> Iterator[int | None]:
    """The terminal if this process is in its foreground, for the command to use meanwhile (Ctrl-C is its own)."""
    terminal, ours = None, False
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        ours = os.tcgetpgrp(terminal) == os.getpgrp()
    try:
        yield terminal if ours else None
    finally:
        if ours:
            with handled(signal.SIG_IGN, signal.SIGTTOU), contextlib.suppress(OSError):  # it may have ended
                os.tcsetpgrp(terminal, os.getpgrp())
        if terminal is not None:
            os.close(terminal)


def environment(cluster: Cluster, folder: Path) -> dict[str, str]:
    """The command's environment. GPUs are hidden, because all nodes would count the same ones."""
    return {name: value for name, value in os.environ.items() if name not in DROPPED} | {
        CLUSTER: str(folder),
        "BENCH_HOSTS": cluster.hosts,
        "BENCH_REMOTE": f"{shlex.quote(sys.executable)} -m bench.cluster.enter {{host}}",
        "BENCH_IFACE": "eth0",
        "BENCH_NETWORK": cluster.label(),
        "BENCH_LINK_MBIT": "" if cluster.rate_mbit is None else f"{cluster.rate_mbit:g}",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }


def isolate() -> list[str]:
    """The ``unshare`` command that works here. Raises UserError."""
    if os.environ.get(CLUSTER):
        raise UserError("already inside a cluster: start another one outside")
    if not LINUX:
        raise UserError("a cluster on one machine needs Linux, because it uses network namespaces")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UserError(f"`{tool}` is not installed: install the package {package} (apt-get install {package})")
    for user in ([], AS_ROOT_INSIDE) if os.geteuid() == 0 else (AS_ROOT_INSIDE,):
        command = ["unshare", *user, *NAMESPACES]
        if not (why := error_of_command([*command, "true"])):
            return command
    remedy = "run it as root, outside this container, or in one started with `docker run --privileged`"
    for setting, (forbids, allows) in FORBIDDEN.items():
        with contextlib.suppress(OSError):
            if (PROC / "sys" / setting.replace(".", "/")).read_text().strip() == forbids:
                remedy = f"run it as root, or run `sysctl -w {setting}={allows}` as root"
                break
    raise UserError(f"no network namespaces here ({why}): {remedy}")


def error_of_command(command: list[str]) -> str:
    """The error of a command in one line; "" if it works."""
    tried = capture(command, STEP_S)
    if tried.code is None:
        return f"not within {STEP_S:g} s"
    return "" if tried.code == 0 else " ".join(tried.err.split()) or f"exit code {tried.code}"


# --- inside the namespaces --------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    """Build, run, and return the command's exit code. words: folder, plan (JSON), command, pipe, maybe the terminal."""
    folder, plan, command, pipe = Path(words[0]), Cluster(**json.loads(words[1])), words[2], int(words[3])
    terminal = int(words[4]) if words[4:] else None
    try:
        build(plan, folder)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    enter = [sys.executable, "-m", "bench.cluster.enter", plan.names[0], "sh", "-c", command]
    child, told = subprocess.Popen(enter, preexec_fn=lambda: take_terminal(terminal)), threading.Event()
    threading.Thread(target=forward_signals, args=(pipe, child.pid, folder, told), daemon=True).start()
    pid = None
    while pid != child.pid:  # the first process of a PID namespace inherits all orphans
        pid, status = os.wait()
    while told.is_set() and group_exists(child.pid):  # a shell ends before the processes it has waited for
        time.sleep(TICK_S)
    shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def take_terminal(terminal: int | None) -> None:
    """In the command before it starts: its own process group gets the terminal. Ctrl-Z is ignored, because nobody could
    continue a stopped cluster."""
    os.setpgrp()
    if terminal is not None:
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        with handled(signal.SIG_IGN, signal.SIGTTOU):
            os.tcsetpgrp(terminal, os.getpid())


def forward_signals(pipe: int, command: int, folder: Path, told: threading.Event) -> None:
    """Forward signals from the pipe to the command's process group. A closed pipe means that the process outside is
    gone. GRACE_S after the signal this process ends, and with it the namespace."""

    def end_after(code: int) -> None:
        time.sleep(GRACE_S)
        print(f"bench: the command did not end within {GRACE_S:g} s: killed", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)

    number = None
    while number != b"":
        number = os.read(pipe, 1)
        told.set()
        sent = number[0] if number else signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command, sent)
        threading.Thread(target=end_after, args=(128 + sent,), daemon=True).start()


def group_exists(group: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def build(plan: Cluster, folder: Path) -> None:
    """Make the nodes and the network between them. Raises UserError when a step fails."""
    run_or_raise("ip", "link", "add", "name", "switch", "type", "bridge")
    run_or_raise("ip", "link", "set", "switch", "up")
    pids = [start_node() for _ in plan.names]
    for number, (name, pid) in enumerate(zip(plan.names, pids, strict=True)):
        port, address = f"port{number + 1}", plan.addresses[number]
        run_or_raise("ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run_or_raise("ip", "link", "set", port, "master", "switch", "up")
        hosts = folder / f"{name}.hosts"
        hosts.write_text(hosts_file(plan, address))
        for words in (
            ["hostname", name],
            ["mount", "--bind", str(hosts), "/etc/hosts"],
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "set", "eth0", "addrgenmode", "none"],  # no IPv6
            ["ip", "address", "add", f"{address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            *shaping(plan, "eth0", both=True),
        ):
            run_or_raise("nsenter", "--target", str(pid), "--net", "--uts", "--mount", "--", *words)
        for words in shaping(plan, port, both=False):
            run_or_raise(*words)
    plan.describe(folder, pids, plan.cores(usable()))


def start_node() -> int:
    """Start the process that keeps a node's namespaces alive; its pid."""
    words = ["unshare", "--net", "--uts", "--mount", "sh", "-c", "echo; exec sleep infinity"]
    holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if holder.stdout.read(1) != b"\n":
        raise UserError("the cluster cannot be made: no namespaces for a node")
    return holder.pid


def hosts_file(plan: Cluster, own: str) -> str:
    """A node's /etc/hosts. Horovod looks up the machine's name, torch resolves IPv6 forms."""
    named = list(zip(plan.addresses, plan.names, strict=True))
    rows = [f"{address} {name}" for address, name in [("127.0.0.1", "localhost"), *named, (own, os.uname().nodename)]]
    return "\n".join([*rows, *(f"::ffff:{address} {name}" for address, name in named), ""])


def shaping(plan: Cluster, device: str, both: bool) -> list[list[str]]:
    """The tc commands that limit what a device sends; ``both``: with delay and loss.

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


def run_or_raise(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=STEP_S, stdin=subprocess.DEVNULL)
        why = done.returncode and (" ".join(done.stderr.split()) or f"exit code {done.returncode}")
    except subprocess.TimeoutExpired:
        why = f"it takes more than {STEP_S:g} s"
    if why:
        raise UserError(f"the cluster cannot be made: `{' '.join(words)}`: {why}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
