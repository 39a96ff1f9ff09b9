"""Where a node stands among the machines of a run."""

from dataclasses import dataclass

from bench.process.guard import JOINS


@dataclass(frozen=True)
class Placement:
    """A node's place in a run. ranks: its own. number: of the node; count: of all nodes. main: the address of the
    first node, at which all ranks meet; port: there, 0 where the engine finds one itself. With HOSTS also
    host: its name there; address, iface: its own, by which it talks to the others; "" on one machine.
    joins: its ranks watch themselves (bench/launch/joining.py), for nobody sees the processes of all of them."""

    ranks: range
    number: int = 0
    count: int = 1
    main: str = "127.0.0.1"
    port: int = 0
    host: str = ""
    address: str = ""
    iface: str = ""
    joins: bool = False

    @property
    def log(self) -> str:
        """The file in the run's folder that takes the output of this node's engine."""
        return f"launcher{self.number or ''}.log"

    def variables(self) -> dict[str, str]:
        """What the ranks must know of it: which machine they are on, and by which interface they talk to the others."""
        named = {"BENCH_NODE": self.host, "BENCH_NODE_RANK": str(self.number)} if self.host else {}
        named |= {JOINS: "1", "BENCH_ADDRESS": self.address} if self.joins else {}
        return named | ({f"{name}_SOCKET_IFNAME": self.iface for name in ("GLOO", "NCCL")} if self.count > 1 else {})
