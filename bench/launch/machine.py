"""What one machine of several says of itself before a run: versions, devices, its address, whom it reaches.

Each function is asked on the machine itself. Nothing here imports torch.
"""

import dataclasses
import os
import platform
import socket

import psutil

from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.install import horovod_status
from bench.launch.devices import choose_device, weakest
from bench.launch.ports import free_port, require_free_port
from bench.measure import node
from bench.measure.environment import cpu_quota, source_hash

REACH_S = 5.0  # to open a connection to another machine of the run
NO_PORT = 9  # a datagram that is never sent asks for a route alone
REMEDY = {  # of what must be the same on all machines; the last where a mode needs it
    "Python": "use the same Python there, at the same path",
    "torch": "install the same torch there (`make setup`)",
    "code of bench": "bring the same code there (git pull, rsync)",
    "Horovod": "run `bench install-horovod` there",
}


def describe() -> dict:
    """What must be the same on all machines, and what is shared out: cores, and which machine they are of."""
    torch = horovod_status.torch_version()
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {
        "Python": platform.python_version(), "torch": torch[0] if torch else None,
        "Horovod": horovod_status.installed_version(), "code of bench": source_hash()[:12],
        "name": node.name(), "node": node.key(), "machine": node.machine_key(),
        "cores": sorted(affinity), "quota": cpu_quota(),
    }  # fmt: skip


def differs(other: dict, first: dict, mode: str, where: str) -> str:
    """What of a machine is not as on another, and what to do; "" where nothing is. where: the other, as it is called.

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
    """Cores of all machines together, from what ``describe`` says in their processes: of each node those that its
    processes may use between them, for a launcher may have bound each to its own; of nodes that are one machine each
    core once.

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
    """What this machine gives a run that takes so many devices of it: "cuda" or "cpu", and its weakest GPU. Raises
    UserError where it has not what is asked for."""
    here = {"hosts": None, "remote": None, "iface": None, "fault": None, "num_devices": devices}
    config = dataclasses.replace(config, **here)
    kind = choose_device(config)
    return {"device": kind, "weakest": weakest(config) if kind == "cuda" else (None, None)}


def address_of(iface: str | None, towards: str | None) -> dict:
    """By which interface, with which address, this machine talks to another: the one that is named, or that of the
    route to ``towards``, a name or an address. Raises UserError where there is none."""
    every = psutil.net_if_addrs().items()
    found = {name: own.address for name, addresses in every for own in addresses if own.family == socket.AF_INET}
    here = ", ".join(f"{name} ({address})" for name, address in found.items()) or "none with an IPv4 address"
    if iface is None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((towards, NO_PORT))
                address = probe.getsockname()[0]
        except OSError as error:
            raise UserError(f"finds no route to {towards} ({error.strerror or error}): check the names in HOSTS, or "
                            f"name the interface as IFACE; there are {here}") from None  # fmt: skip
        iface = next((name for name, own in found.items() if own == address), "")
        return {"iface": iface, "address": address}
    if iface not in found:
        raise UserError(f"has no interface IFACE={iface} with an IPv4 address: there are {here}")
    return {"iface": iface, "address": found[iface]}


def listener(address: str) -> socket.socket:
    """A socket at which the other machines may try whether they reach this one."""
    server = socket.socket()
    server.bind((address, 0))
    server.listen(128)
    return server


def meeting_port(address: str, url: str | None) -> int:
    """Where all ranks can meet: DIST_URL's port, else a free one. Raises UserError where it is taken."""
    if url is None:
        return free_port(address)
    port = int(url.rpartition(":")[2])
    require_free_port(address, port, url)
    return port


def reach(own: str, others: list[list]) -> str:
    """Which of the others cannot be reached from this machine's own address, and why; "" where all can. others: name,
    address, port of each."""
    for name, address, port in others:
        try:
            socket.create_connection((address, port), REACH_S, (own, 0)).close()
        except OSError as error:
            return f"does not reach {name} at {address} from {own} ({error.strerror or error})"
    return ""


def own_address(name: str) -> bool:
    """Whether a name in HOSTS is this machine's."""
    host = socket.gethostname()
    if name in (host, host.partition(".")[0]):
        return True
    try:
        found = {each[4][0] for each in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
        return False
    return bool(found & {a.address for addresses in psutil.net_if_addrs().values() for a in addresses})


def answers_to_its_name(address: str) -> str:
    """Why Horovod's ranks would die on this machine, which look for their own address by the machine's name; "" where
    that name leads to it."""
    host = socket.gethostname()
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, None, socket.AF_INET)}
    except OSError:
        found = set()
    if address in found:
        return ""
    leads = f"leads to {', '.join(sorted(found))}" if found else "is not known there"
    return f"its own name, {host}, {leads}, and Horovod needs it to be {address}: `{address} {host}` in /etc/hosts"
