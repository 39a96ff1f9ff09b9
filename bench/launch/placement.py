"""A node's place among the machines of a run."""

from dataclasses import dataclass

from bench.process.guard import JOINS


@dataclass(frozen=True)
class Placement:
    """number: of this node. main, port: where all ranks meet (port 0: the launcher chooses). host: name in HOSTS.
    address, iface: its own. joins: its ranks watch themselves (joining.py)."""

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
        return f"launcher{self.number or ''}.log"

    def variables(self) -> dict[str, str]:
        """The ranks' machine and their network interface."""
        named = {"BENCH_NODE": self.host, "BENCH_NODE_RANK": str(self.number)} if self.host else {}
        named |= {JOINS: "1", "BENCH_ADDRESS": self.address} if self.joins else {}
        return named | ({f"{name}_SOCKET_IFNAME": self.iface for name in ("GLOO", "NCCL")} if self.count > 1 else {})
