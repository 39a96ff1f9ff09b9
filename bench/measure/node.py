"""This machine as one of several: its name, its network interface and that link's speed."""

import os
import socket

import psutil

from bench.errors import printable
from bench.measure import steady
from bench.measure.environment import collect_environment

NAME, NUMBER = "BENCH_NODE", "BENCH_NODE_RANK"  # set by who starts a process: as in HOSTS, and its place there
NETWORK = "BENCH_NETWORK"  # a line that says what the network is, where it is no ordinary one
LINK = "BENCH_LINK_MBIT"  # of a network whose interfaces do not know it: Mbit/s of a link; empty: no limit
# Where the ranks meet, by who started them; which interface an engine was told to use.
MEETING = ("MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
LONGEST = 300  # letters of a line that a record holds
ROUNDS = 5  # of an exchange between all ranks: some milliseconds each
TOLD = ("BENCH_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")


def name() -> str:
    """As given in a list of hosts, or the host name."""
    return os.environ.get(NAME) or socket.gethostname()


def key() -> str:
    """Ranks with the same key are on one node."""
    return f"{os.environ.get(NUMBER, '')} {name()}"


def machine_key() -> str:
    """The same for machines: two nodes that are namespaces of one machine share its processor."""
    return steady.this_boot() or name()


def machine_of(mode) -> dict:
    """This rank's machine, for the record; with several machines all that distinguishes them. Every rank calls it."""
    found = {"key": key(), "machine": machine_key()}
    if len(set(mode.gather(found["key"]))) == 1:
        return found
    offset, uncertainty = clock_offset(mode)
    found |= {"name": name(), **link(), "clock_offset_s": offset, "clock_uncertainty_s": uncertainty}
    return found | ({"environment": collect_environment()} if mode.topology.local_rank == 0 else {})


def network() -> str | None:
    """What the network is, in words; None for an ordinary one."""
    return printable(os.environ.get(NETWORK, ""))[:LONGEST] or None


def link() -> dict[str, str | float | None]:
    """interface: by which the others are reached. link_speed_mbit: as the interface gives it (without limits on the
    way), or the limit of a cluster of namespaces, whose interfaces always say 10 Gbit/s. None where it is unknown or
    unlimited."""
    found = interface()
    if LINK in os.environ:
        return {"interface": found, "link_speed_mbit": float(os.environ[LINK]) if os.environ[LINK] else None}
    stats = psutil.net_if_stats().get(found) if found else None
    return {"interface": found, "link_speed_mbit": (stats.speed or None) if stats else None}


def interface() -> str | None:
    """What a backend was told to use; else the one of the route to where the ranks meet."""
    if told := next(filter(None, map(os.environ.get, TOLD)), None):
        return told
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


def clock_offset(mode) -> tuple[float, float]:
    """How far this machine's clock is from rank 0's, in seconds, and the uncertainty of that.

    mode: open; every rank calls it. In each of ROUNDS rounds rank 0 reads its clock before a barrier, each rank reads
    its clock after it, and rank 0 reads its own again after a gather: the others read theirs between the two. The
    offset is to the middle, the uncertainty half of the time between them; the best round counts.
    """
    rounds = []
    for _ in range(ROUNDS):
        before = steady.now()
        mode.barrier()
        here = steady.now()
        mode.gather(here)
        rounds.append((before, here, steady.now()))
    first = mode.gather(rounds)[0]
    if mode.topology.rank == 0:
        return 0.0, 0.0
    return min((within(mine, (before, after)) for (before, _, after), (_, mine, _) in zip(first, rounds, strict=True)),
               key=lambda found: found[1])  # fmt: skip


def within(moment: float, span: tuple[float, float]) -> tuple[float, float]:
    """The difference of two clocks and its uncertainty, for a moment that was between two of the other clock.

    >>> within(103.5, (100.0, 101.0))
    (3.0, 0.5)
    """
    before, after = span
    return moment - (before + after) / 2, (after - before) / 2
