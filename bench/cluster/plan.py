"""A cluster's nodes, addresses, cores and links."""

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import UserError

MOST_NODES = 64
UNITS_OF_RATE = {"kbit": 0.001, "mbit": 1, "gbit": 1000}  # in Mbit/s
UNITS_OF_TIME = {"us": 0.001, "ms": 1, "s": 1000}  # in ms
NUMBER = r"(\d+(?:\.\d+)?)"
CLUSTER = "BENCH_CLUSTER"  # in a cluster's environment: the folder with its description
DESCRIPTION = "cluster.json"


@dataclass(frozen=True)
class Cluster:
    """rate_mbit: of every link, each direction; None: no limit. latency_ms: one way. loss_percent: each way."""

    nodes: int = 2
    per_node: int = 1
    rate_mbit: float | None = None
    latency_ms: float = 0
    loss_percent: float = 0

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def addresses(self) -> list[str]:
        return [f"10.99.0.{number}" for number in range(1, self.nodes + 1)]

    @property
    def hosts(self) -> str:
        """The value of HOSTS."""
        return ",".join(f"{name}:{self.per_node}" for name in self.names)

    @property
    def needs_netem(self) -> bool:
        return bool(self.latency_ms or self.loss_percent)

    def label(self) -> str:
        """The network in words, as records have it.

        >>> Cluster(nodes=4, rate_mbit=2500, latency_ms=5, loss_percent=0.1).label()
        '4 namespaces of one machine, links limited to 2.5 Gbit/s, 5 ms one way, 0.1 % of the packets lost'
        """
        rate = "without a limit" if self.rate_mbit is None else f"limited to {rate_words(self.rate_mbit)}"
        delay = f", {self.latency_ms:g} ms one way" if self.latency_ms else ""
        loss = f", {self.loss_percent:g} % of the packets lost" if self.loss_percent else ""
        return f"{self.nodes} namespaces of one machine, links {rate}{delay}{loss}"

    def cores(self, usable: list[int]) -> list[list[int]]:
        """Each node's own cores if there are enough.

        >>> Cluster(nodes=2).cores([0, 1, 2, 3]), Cluster(nodes=3).cores([0, 1])
        ([[0, 1], [2, 3]], [[0], [1], [0]])
        """
        share = len(usable) // self.nodes
        if not share:
            return [[usable[number % len(usable)]] for number in range(self.nodes)]
        return [usable[number * share : (number + 1) * share] for number in range(self.nodes)]

    def describe(self, folder: Path, pids: list[int], cores: list[list[int]]) -> None:
        columns = zip(self.names, self.addresses, pids, cores, strict=True)
        nodes = [{"name": name, "address": address, "pid": pid, "cores": own} for name, address, pid, own in columns]
        (folder / DESCRIPTION).write_text(json.dumps({"label": self.label(), "links": asdict(self), "nodes": nodes}))


# The pattern of ``Cluster.label``.
LABEL = re.compile(rf"{NUMBER} namespaces of one machine, links (?:without a limit|limited to {NUMBER} ([MG])bit/s)"
                   rf"(?:, {NUMBER} ms one way)?(?:, {NUMBER} % of the packets lost)?")  # fmt: skip


def limit_of(label: str | None) -> float | None:
    """The link rate in Mbit/s from ``Cluster.label``.

    >>> limit_of(Cluster(rate_mbit=2500).label()), limit_of("InfiniBand"), limit_of(None)
    (2500.0, None, None)
    """
    found = LABEL.fullmatch(label or "")
    return float(found[2]) * (1000 if found[3] == "G" else 1) if found and found[2] else None


def repeated(command: str, label: str | None, hosts: str | None) -> str:
    """The make command to type outside the cluster whose label a record has. hosts: the run's HOSTS.

    >>> hosts = "node1:2,node2:2"
    >>> repeated(f"make compare HOSTS={hosts} IFACE=eth0 LR=0.1", Cluster(rate_mbit=1000).label(), hosts)
    'make cluster NODES=2 PER_NODE=2 LINK=1gbit CMD="make compare LR=0.1"'
    >>> repeated(f"make compare HOSTS={hosts}", "InfiniBand", hosts)
    'make compare HOSTS=node1:2,node2:2'
    """
    found = LABEL.fullmatch(label or "")
    if not found:
        return command
    nodes, rate, unit, latency, loss = found.groups()
    per_node = re.match(r"node1:(\d+)", hosts or "")
    words = ["make cluster", f"NODES={nodes}"]
    words += [f"PER_NODE={per_node[1]}"] if per_node and per_node[1] != "1" else []
    link = [f"{rate}{unit.lower()}bit"] if rate else []
    link += [f"{latency}ms"] if latency else []
    words += [f"LINK={','.join(link)}"] if link else []
    words += [f"LOSS={loss}%"] if loss else []
    inner = " ".join(word for word in command.split() if not word.startswith(("HOSTS=", "IFACE=")))
    return " ".join([*words, f'CMD="{inner}"'])


def rate_words(mbit: float) -> str:
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def read_nodes(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MOST_NODES:
        raise UserError(f"NODES={text}: write a whole number from 2 to {MOST_NODES}")
    return int(text)


def read_link(text: str | None, any_rate: bool = False) -> tuple[float | None, float]:
    """LINK=100mbit, 5ms or 100mbit,5ms: Mbit/s (None: no limit) and one-way latency in ms. Raises UserError.

    any_rate: the rate is judged elsewhere.

    >>> read_link("1gbit,5ms"), read_link("200us"), read_link(None)
    ((1000.0, 5.0), (None, 0.2), (None, 0))
    """
    rate, latency = None, 0
    for word in filter(None, (text or "").split(",")):
        if (found := quantity(word, UNITS_OF_TIME)) is not None and 0 < found <= 10_000 and not latency:
            latency = found
        elif (
            (found := quantity(word, UNITS_OF_RATE)) is not None
            and rate is None
            and (any_rate or 0.1 <= found <= 10_000)
        ):
            rate = found
        else:
            raise UserError(f"LINK={text}: write a rate from 100kbit to 10gbit and a one-way latency up to 10s, as in "
                            "LINK=100mbit, LINK=5ms or LINK=1gbit,200us")  # fmt: skip
    return rate, latency


def read_loss(text: str) -> float:
    """LOSS=1%, in percent."""
    found = re.fullmatch(NUMBER + "%?", text)
    if not found or not 0 < float(found[1]) <= 50:
        raise UserError(f"LOSS={text}: write a loss rate up to 50 %, as in LOSS=0.1%")
    return float(found[1])


def quantity(text: str, units: dict[str, float]) -> float | None:
    found = re.fullmatch(NUMBER + f"({'|'.join(units)})", text.lower())
    return float(found[1]) * units[found[2]] if found else None


def usable() -> list[int]:
    return sorted(os.sched_getaffinity(0))
