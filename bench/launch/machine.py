"""One of several machines: its report before a run (versions, devices, address, reachable machines), and the process
that REMOTE starts there. It starts the launcher, and ends it when the caller is gone or silent. Each line of its stdin
is a question in JSON, each line of stdout an answer."""

import base64
import contextlib
import dataclasses
import json
import os
import platform
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import psutil

from bench.config.modes import MODES
from bench.config.options import RunConfig, from_dict
from bench.errors import UserError
from bench.files import SHARED
from bench.install import horovod_status
from bench.launch.command import OF_ENGINES
from bench.launch.devices import choose_device, least_capable
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.launch.ports import free_port, require_free_port
from bench.measure import node, steady, waiting
from bench.measure.environment import cpu_quota, source_hash

SILENCE_S = 60.0  # without a question, or TIMEOUT if that is longer
# Files sent back during the run
LIVE = (".rank*.status", ".rank0.epochs", ".rank0.starts", ".rank0.verdict.json", ".rank*.error.json", "*.log")
LOG_BYTES = 2**16  # of the end of a log, during the run
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # the user's values apply on all machines
REACH_S = 5.0  # to open a connection to another machine of the run
NO_PORT = 9  # any: a UDP connect looks up the route and sends nothing
REMEDY = {  # for differences between machines; the last one only if a mode needs it
    "Python": "use the same Python there, at the same path",
    "torch": "install the same torch there (`make setup`)",
    "code of bench": "bring the same code there (git pull, rsync)",
    "Horovod": "run `bench install-horovod` there",
}


def describe() -> dict:
    """Everything that must be equal on all machines, and the machine's cores."""
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {
        "Python": platform.python_version(), "torch": (horovod_status.torch_version() or [None])[0],
        "Horovod": horovod_status.installed_version(), "code of bench": source_hash()[:12],
        "name": node.name(), "node": node.key(), "machine": node.machine_key(),
        "cores": sorted(affinity), "quota": cpu_quota(),
    }  # fmt: skip


def differs(other: dict, first: dict, mode: str, where: str) -> str:
    """How a machine differs from another, and what to do; "" if it does not. where: the other's name in the message.

    >>> first = {"Python": "3.11", "torch": "2.14", "code of bench": "1f3a"}
    >>> differs(first | {"torch": None}, first, "ddp", "here")
    'torch is not installed there and 2.14 here: install the same torch there (`make setup`)'
    """
    for name in REMEDY if MODES[mode].needs else list(REMEDY)[:3]:
        if other[name] != first[name]:
            there, here = other[name] or "not installed", first[name] or "not installed"
            return f"{name} is {there} there and {here} {where}: {REMEDY[name]}"
    return ""


def cores_of(found: list[dict]) -> int:
    """The cores of all machines, from ``describe`` in their processes: each core once, within each node's CPU quota.

    >>> at = lambda machine, node, cores, quota=None: {"machine": machine, "node": node, "cores": cores, "quota": quota}
    >>> cores_of([at("a", "a", [0]), at("a", "a", [1]), at("b", "b", [0, 1, 2, 3], 2.5)])
    4
    >>> cores_of([at("a", "1", [0, 1]), at("a", "2", [0, 1])]), cores_of([at("a", "1", [0]), at("a", "2", [1])])
    (2, 2)
    """
    machines = {}
    for each in found:
        nodes = machines.setdefault(each["machine"], {})
        nodes.setdefault(each["node"], (set(), each["quota"]))[0].update(each["cores"])
    total = 0
    for nodes in machines.values():
        given = sum(max(1, min(len(cores), int(quota or len(cores)))) for cores, quota in nodes.values())
        total += min(given, len(set().union(*(cores for cores, _ in nodes.values()))))
    return total


def device(config: RunConfig, devices: int) -> dict:
    """Device for ``devices`` devices of this machine, and its weakest GPU. Raises UserError."""
    here = {"hosts": None, "remote": None, "iface": None, "fault": None, "num_devices": devices}
    config = dataclasses.replace(config, **here)
    kind = choose_device(config)
    return {"device": kind, "weakest": least_capable(config) if kind == "cuda" else (None, None)}


def address_of(iface: str | None, towards: str | None) -> dict:
    """This machine's interface and address: IFACE's, or those of the route to ``towards``. Raises UserError."""
    found = dict(own_addresses())
    here = ", ".join(f"{name} ({address})" for name, address in found.items()) or "none with an IPv4 address"
    if iface is None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((towards, NO_PORT))
                address = probe.getsockname()[0]
        except OSError as error:
            remedy = f"check the names in HOSTS, or choose an interface with IFACE; there are {here}"
            raise UserError(f"finds no route to {towards} ({error.strerror or error}): {remedy}") from None
        iface = next((name for name, own in found.items() if own == address), "")
        return {"iface": iface, "address": address}
    if iface not in found:
        raise UserError(f"has no interface IFACE={iface} with an IPv4 address; available: {here}")
    return {"iface": iface, "address": found[iface]}


def own_addresses() -> list[tuple[str, str]]:
    """Interfaces and their IPv4 addresses."""
    every = psutil.net_if_addrs().items()
    return [(name, own.address) for name, addresses in every for own in addresses if own.family == socket.AF_INET]


def addresses_of(name: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {each[4][0] for each in socket.getaddrinfo(name, None, socket.AF_INET)}
    return set()


def sees_folder(path: Path, mark: str) -> bool:
    """Whether rank 0's folder, which holds the mark, is visible and writable here."""
    with contextlib.suppress(OSError):
        return (path / SHARED).read_text() == mark and os.access(path, os.W_OK)
    return False


def reach(own: str, others: list[list]) -> str:
    """Which of ``others`` (name, address, port) cannot be reached from this machine's address; "" if all can."""
    for name, address, port in others:
        try:
            socket.create_connection((address, port), REACH_S, (own, 0)).close()
        except OSError as error:
            return f"does not reach {name} at {address} from {own} ({error.strerror or error})"
    return ""


def own_address(name: str) -> bool:
    host = socket.gethostname()
    return name in (host, host.partition(".")[0]) or bool(addresses_of(name) & {own for _, own in own_addresses()})


def answers_to_its_name(address: str) -> str:
    """The error if this machine's name does not resolve to its address, which Horovod needs; else ""."""
    host = socket.gethostname()
    if address in (found := addresses_of(host)):
        return ""
    leads = f"resolves to {', '.join(sorted(found))}" if found else "does not resolve there"
    return f"its own name {host} {leads}, but Horovod needs {address}: add `{address} {host}` to /etc/hosts"


# --- the process on a machine of HOSTS --------------------------------------------------------------------------------


class OnMachine:
    """Each public method is a question."""

    def __init__(self):
        self.node, self.own_folder, self.listener, self.others, self.sent_files = None, None, None, [], {}
        self.silence_s = SILENCE_S

    def look(self, config: dict, ours: dict, devices: int) -> dict:
        asked, mine = from_dict(config), describe()
        if why := differs(mine, ours, asked.mode, "here"):
            raise UserError(why)
        return mine | device(asked, devices)

    def address(self, iface: str | None, towards: str, url: str | None) -> dict:
        """This machine's interface and address, a port where all ranks can meet, and one to test connections."""
        found = address_of(iface, towards)
        address, port = found["address"], url and int(url.rpartition(":")[2])
        self.listener = socket.create_server((address, 0), backlog=128)  # kept during the run
        if url:
            require_free_port(address, port, url)
        return found | {"port": port or free_port(address), "listens": self.listener.getsockname()[1]}

    def place(self, placement: dict, others: list[list], config: dict, run_dir: str, mark: str) -> str | None:
        """The folder of this machine's ranks: None for the run's folder if it is visible here, else a temporary one."""
        placement, self.config = Placement(**placement | {"ranks": range(*placement["ranks"])}), from_dict(config)
        self.others, self.silence_s = [placement.address, others], max(SILENCE_S, self.config.timeout)
        if why := self.unreachable():
            raise UserError(f"{why}: choose another interface with IFACE (not {placement.iface}), or open the firewall")
        if others and MODES[self.config.mode].needs and (why := answers_to_its_name(placement.address)):
            raise UserError(why)
        if sees_folder(Path(run_dir), mark):
            self.node = Node(placement, Path(run_dir))
            return None
        self.own_folder = Path(tempfile.mkdtemp(prefix="bench-"))
        (self.own_folder / "config.json").write_text(json.dumps(config))
        self.node = Node(placement, self.own_folder)
        return str(self.own_folder)

    def unreachable(self) -> str:
        return reach(*self.others) if self.others else ""

    def start(self, since_s: float, variables: dict) -> None:
        """since_s: seconds since the run began, because clocks are not compared. variables: the user's."""
        argv, environment = self.node.command(self.config, steady.now() - since_s)
        own = {name: variables[name] for name in INTERFACES if name in variables and not self.config.iface}
        if not waiting.variables(variables):  # the user's own policy
            environment = {name: value for name, value in environment.items() if name not in waiting.BOUNDED}
        users = {name: value for name, value in variables.items() if not OF_ENGINES.fullmatch(name)}
        self.node.start(argv, users | environment | own)

    def poll(self) -> list:
        before, self.sent_files = self.sent_files, {}
        for path in (path for pattern in LIVE if self.own_folder for path in self.own_folder.glob(pattern)):
            data = path.read_bytes()
            self.sent_files[path.name] = base64.b64encode(data[-LOG_BYTES:] if path.suffix == ".log" else data).decode()
        return [self.node.wait(0), dict(self.sent_files.items() - before.items())]

    def end(self) -> None:
        if self.node and self.node.tree.process:
            self.node.end()

    def leave(self) -> None:
        try:
            self.end()
            if self.own_folder:
                shutil.rmtree(self.own_folder, ignore_errors=True)
        finally:
            os._exit(0)


def answer(asked: OnMachine, line: bytes) -> None:
    number, name, given = json.loads(line)
    try:
        said = {"answer": getattr(asked, name)(**given)}
    except UserError as error:
        said = {"refused": str(error)}
    except Exception as error:
        said = {"refused": f"{name} failed: {type(error).__name__}: {error}"}
    os.write(1, json.dumps({"id": number, **said}).encode() + b"\n")


def main() -> None:
    """Answer until there are no more questions."""
    asked, text = OnMachine(), b""
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        os.chdir(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGHUP):  # from REMOTE when the other side is gone
        signal.signal(number, lambda *_: asked.leave())
    with contextlib.suppress(BrokenPipeError):
        while select.select([0], [], [], asked.silence_s)[0] and (piece := os.read(0, 2**16)):
            *lines, text = (text + piece).split(b"\n")
            for line in filter(None, lines):
                answer(asked, line)
    asked.leave()


if __name__ == "__main__":
    main()
