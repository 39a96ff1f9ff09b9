"""Starts a cluster and sees that nothing of it is left: the part that runs outside of the namespaces.

All of it lives in a PID namespace, whose first process is inside.py. When that ends, for whatever reason, the kernel
kills the rest and takes the network away with them. It tells the command to end when its pipe from here is closed:
also by SIGKILL.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.errors import UserError
from bench.files import LINUX, PROC, PROJECT
from bench.launch.cluster.plan import CLUSTER, Cluster, usable
from bench.process.ending import handled
from bench.process.tree import Tree, capture

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount",
         "hostname": "hostname"}  # fmt: skip
NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
AS_ROOT_INSIDE = ["--user", "--map-root-user"]  # an ordinary user is root there, and nowhere else
NETEM = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
TRIAL_S = 30.0  # for something that is tried
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERMOUT", "MAKE_TERMERR")


def run(cluster: Cluster, command: str) -> int:
    """Make the cluster, run a shell command on its first node, take it away. Returns the command's exit code.

    Raises UserError when there cannot be one here.
    """
    isolation = isolate()
    if cluster.needs_netem:
        require_netem(isolation)
    print(f"cluster: {cluster.label()}; {cluster.cores_words(usable())}", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    reading, writing = os.pipe()
    try:
        with forwarded(writing), lent_terminal() as terminal, Tree() as tree:
            fds = [reading, *([terminal] if terminal else [])]
            inside = [sys.executable, "-m", "bench.launch.cluster.inside"]
            argv = [*isolation, *inside, str(folder), json.dumps(asdict(cluster))]
            tree.start(
                [*argv, command, *map(str, fds)], environment(cluster, folder), stdin=None, pass_fds=fds,
                start_new_session=False, preexec_fn=os.setpgrp,
            )  # fmt: skip
            os.close(reading)
            code = tree.wait()
        return 128 - code if code < 0 else code
    finally:
        os.close(writing)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def forwarded(writing: int) -> Iterator[None]:
    """A signal that somebody sends to this process goes to the command, as one byte through the pipe."""

    def send(number: int, _frame) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(writing, bytes([number]))

    with handled(send, *FORWARDED):
        yield


@contextlib.contextmanager
def lent_terminal() -> Iterator[int | None]:
    """The terminal, when it is ours to give, for the command to have while it runs, so that Ctrl-C is its own
    (inside.py); then it is taken back. None where there is none, or another job has it."""
    terminal, ours = None, False
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        ours = os.tcgetpgrp(terminal) == os.getpgrp()
    try:
        yield terminal if ours else None
    finally:
        if ours:
            previous = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            with contextlib.suppress(OSError):  # it may be gone
                os.tcsetpgrp(terminal, os.getpgrp())
            signal.signal(signal.SIGTTOU, previous)
        if terminal is not None:
            os.close(terminal)


def environment(cluster: Cluster, folder: Path) -> dict[str, str]:
    """The command's environment: ours, what HOSTS, REMOTE and IFACE are here, and nothing of the make above us, whose
    variables are not those of a make in the command. GPUs are hidden: every node would count the same ones."""
    own = {*OF_MAKE, "NODES", "PER_NODE", "RATE", "LATENCY", "LOSS", "CMD"}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {
        CLUSTER: str(folder),
        "BENCH_HOSTS": cluster.hosts,
        "BENCH_REMOTE": f"{shlex.quote(sys.executable)} -m bench.launch.cluster.enter {{host}}",
        "BENCH_IFACE": "eth0",
        "BENCH_NETWORK": cluster.label(),
        "BENCH_LINK_MBIT": "" if cluster.rate_mbit is None else f"{cluster.rate_mbit:g}",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }


def isolate() -> list[str]:
    """The command that puts another one into namespaces of its own. Raises UserError when there is none."""
    if os.environ.get(CLUSTER):
        raise UserError("this is inside of a cluster already: start another one outside of it")
    if not LINUX:
        raise UserError("a cluster on one machine needs Linux: it is made of network namespaces")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UserError(f"`{tool}` is not installed: install the package {package} (apt-get install {package})")
    for user in ([], AS_ROOT_INSIDE) if os.geteuid() == 0 else (AS_ROOT_INSIDE,):
        command = ["unshare", *user, *NAMESPACES]
        if not (said := complaint([*command, "true"])):
            return command
    raise UserError(f"no network namespaces here ({said}): {remedy()}")


def require_netem(isolation: list[str]) -> None:
    """Raise UserError where the kernel cannot delay or lose packets."""
    if said := complaint([*isolation, *NETEM]):
        raise UserError(
            f"LATENCY and LOSS need the kernel's module sch_netem ({said}): have root say `modprobe sch_netem`, or "
            "leave them out; RATE does without"
        )


def complaint(command: list[str]) -> str:
    """What a command says that does not work here, in one line; "" of one that works."""
    tried = capture(command, TRIAL_S)
    if tried.code is None:
        return f"not within {TRIAL_S:g} s"
    return "" if tried.code == 0 else " ".join(tried.err.split()) or f"exit code {tried.code}"


def remedy() -> str:
    """What to do where the kernel or a container forbids namespaces."""
    switches = {"sys/kernel/apparmor_restrict_unprivileged_userns": "1", "sys/kernel/unprivileged_userns_clone": "0",
                "sys/user/max_user_namespaces": "0"}  # fmt: skip
    values = {"0": "1", "1": "0"}
    for path, forbids in switches.items():
        with contextlib.suppress(OSError):
            if (PROC / path).read_text().strip() == forbids:
                value = "10000" if path.startswith("sys/user") else values[forbids]
                return f"run it as root, or have root say `sysctl -w {path[4:].replace('/', '.')}={value}`"
    return "run it as root, or outside of this container, or in one started with `docker run --privileged`"
