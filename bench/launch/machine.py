"""What one machine of several says of itself before a run: versions, devices, its address, whom it reaches.

Each function is asked on the machine itself, by bench/launch/agent.py. Nothing here imports torch.
"""

import dataclasses
import os
import platform
import socket

import psutil

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.install import horovod_status
from bench.launch.devices import choose_device, weakest
from bench.measure import steady
from bench.measure.environment import source_hash, usable_cores

REACH_S = 5.0  # to open a connection to another machine of the run
NO_PORT = 9  # a datagram that is never sent asks for a route alone


def describe() -> dict:
    """What must be the same on all machines, and what is shared out: cores, and which boot of which machine it is."""
    torch = horovod_status.torch_version()
    return {
        "Python": platform.python_version(),
        "torch": torch[0] if torch else None,
        "Horovod": horovod_status.installed_version(),
        "code of bench": source_hash()[:12],
        "cores": usable_cores(),
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "boot": steady.this_boot(),
    }


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
