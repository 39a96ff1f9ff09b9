"""This machine as one of several: its name, its network interface and that link's speed."""

import os
import socket

import psutil

from bench.errors import printable
from bench.measure import steady
from bench.measure.environment import collect_environment

NAME, NUMBER = "BENCH_NODE", "BENCH_NODE_RANK"  # set by the launcher: the name in HOSTS, and its index
NETWORK = "BENCH_NETWORK"  # a description of the network, unless it is an ordinary one
LINK = "BENCH_LINK_MBIT"  # Mbit/s of a link, if the network's interfaces do not report it; empty: no limit
# The rendezvous address, by launcher; the interface set for a backend.
MEETING = ("MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
LONGEST = 300  # characters of a line in a record
TOLD = ("BENCH_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")


def name() -> str:
    return os.environ.get(NAME) or socket.gethostname()


def key() -> str:
    return f"{os.environ.get(NUMBER, '')} {name()}"


def machine_key() -> str:
    """Identifies a machine: two nodes that are namespaces of one machine share its processor."""
    return steady.this_boot() or name()


def machine_of(mode) -> dict:
    """This rank's machine, for the record; with several machines also what distinguishes them. Every rank calls it."""
    found = {"key": key(), "machine": machine_key()}
    if len(set(mode.gather(found["key"]))) == 1:
        return found
    found |= {"name": name(), **link()}
    return found | ({"environment": collect_environment()} if mode.topology.local_rank == 0 else {})


def network() -> str | None:
    return printable(os.environ.get(NETWORK, ""))[:LONGEST] or None


def link() -> dict[str, str | float | None]:
    """interface: to the other machines. link_speed_mbit: of the interface (without limits on the way), or the limit of
    a cluster of namespaces, whose interfaces always report 10 Gbit/s. None if unknown or unlimited."""
    found = interface()
    if LINK in os.environ:
        return {"interface": found, "link_speed_mbit": float(os.environ[LINK]) if os.environ[LINK] else None}
    stats = psutil.net_if_stats().get(found) if found else None
    return {"interface": found, "link_speed_mbit": (stats.speed or None) if stats else None}


def interface() -> str | None:
    """The interface set for a backend; else that of the route to the rendezvous."""
    if text := next(filter(None, map(os.environ.get, TOLD)), None):
        return text
    place = next(filter(None, map(os.environ.get, MEETING)), None)
    try:
        family, _, _, _, address = socket.getaddrinfo(place or "", 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # nothing is sent: it only chooses a route
            mine = probe.getsockname()[0]
    except OSError:
        return None
    cards = psutil.net_if_addrs().items()
    return next((card for card, addresses in cards if any(mine == each.address for each in addresses)), None)
