"""The link between devices: latency, seconds per byte, and the number of messages that share it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bench import formulas
from bench.cluster.plan import UNITS_OF_TIME, limit_of, quantity, rate_words
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.record import packed
from bench.tasks.network import record as network_record
from bench.tasks.network.result import WORDS, Series, best_products, series_of

UNITS_OF_RATE = {"kbit": 0.001, "mbit": 1, "gbit": 1000}  # in Mbit/s
FASTEST = 10_000_000  # Mbit/s
BYTE = 8e-6  # of a Mbit
AT_ONCE = {"gloo": 2, "nccl": 1}  # concurrent collectives of a group: Gloo's threads, NCCL's stream
TCP_REACHES, OTHERS_REACH = (0.25, 1.0), (0.5, 1.0)  # share of the nominal rate: sockets; RDMA, NVLink and PCIe
WANTED = "as in LINK=10gbit,50us: a rate in kbit, mbit or gbit, and a latency in us, ms or s"


@dataclass(frozen=True)
class Link:
    """From every device to the others. alpha_s: latency; beta_s: seconds per byte; each with the ends of its interval,
    None without one. carrier: "gloo" or "nccl". words: a description. rate_mbit: the nominal rate, None if unknown.
    idle_in_beta: beta comes from a measured all-reduce, and contains its idle time. gather, scatter: the link of a
    measured all-gather or reduce-scatter, None if only the all-reduce was measured. reached: the least and the highest
    rate of messages, over that of beta. With per_node devices in a node this is the node's link, and ``inside`` the one
    between its devices."""

    alpha_s: float
    beta_s: float
    words: str
    carrier: str = "gloo"
    alpha_ends: tuple[float | None, float | None] = (None, None)
    beta_ends: tuple[float | None, float | None] = (None, None)
    idle_in_beta: bool = False
    rate_mbit: float | None = None
    reached: tuple[float, float] = OTHERS_REACH
    per_node: int = 1
    inside: "Link | None" = None
    gather: "Link | None" = None
    scatter: "Link | None" = None

    def at_end(self, end: int) -> "Link":
        """The link at the fast (0) or slow (1) end of its intervals; itself without intervals."""
        alpha, beta = self.alpha_ends[end], self.beta_ends[end]
        alpha, beta = self.alpha_s if alpha is None else alpha, self.beta_s if beta is None else beta
        gather, scatter = (each and each.at_end(end) for each in (self.gather, self.scatter))
        return dataclasses.replace(self, alpha_s=max(0.0, alpha), beta_s=max(0.0, beta), alpha_ends=(None, None),
                                   beta_ends=(None, None), gather=gather, scatter=scatter)  # fmt: skip

    def of_ring(self, ranks: int) -> "Link":
        """A link per device over which a ring takes as long as through the nodes."""
        if not self.inside:
            return self
        inside, between = (self.inside.alpha_s, self.inside.beta_s), (self.alpha_s, self.beta_s)
        alpha_s, beta_s = formulas.ring_over_nodes(ranks, self.per_node, inside, between)
        return Link(alpha_s, beta_s, self.words, self.carrier, idle_in_beta=self.idle_in_beta)

    def with_inside(self, per_node: int, inside: "Link") -> "Link":
        words = f"{self.words} for each node of {per_node} devices; inside {inside.words}"
        return dataclasses.replace(self, per_node=per_node, inside=inside, words=words, gather=None, scatter=None)


def parse_link(text: str, carrier: str, inside: bool = False) -> Link:
    """The link in LINK=RATE,LATENCY, at the share of the rate that TCP over Ethernet leaves; inside of a node
    (LINK_INSIDE) at the full rate. Raises UserError.

    >>> parse_link("100mbit,1ms", "gloo").alpha_s, round(1e-6 / parse_link("100mbit,1ms", "gloo").beta_s, 2)
    (0.001, 11.7)
    >>> round(1e-9 / parse_link("1200gbit,4us", "nccl", inside=True).beta_s, 6)
    150.0
    """
    name = "LINK_INSIDE" if inside else "LINK"
    rate_text, _, latency_text = text.partition(",")
    rate = rate_of(name, text, rate_text)
    latency_ms = quantity(latency_text, UNITS_OF_TIME)
    if latency_ms is None:
        raise UserError(f"{name}={text} is not a link: {WANTED}")
    words = f"{rate_words(rate)} and {latency_text} one way{'' if inside else ', TCP over Ethernet'}"
    share, reached = (1.0, OTHERS_REACH) if inside else (formulas.tcp_payload_share(), TCP_REACHES)
    return Link(latency_ms / 1000, BYTE / (rate * share), words, carrier, rate_mbit=rate, reached=reached)


def rate_of(name: str, given: str, text: str) -> float:
    """A rate in Mbit/s. given: the whole value of the variable. Raises UserError."""
    rate = quantity(text, UNITS_OF_RATE)
    if rate is None or not 0.001 <= rate <= FASTEST:
        raise UserError(f"{name}={given} is not a {'rate' if name == 'RATE' else 'link'}: {WANTED}")
    return rate


def measured(place: str, carrier: str) -> Link:
    """The link from the newest all-reduce of `bench network` in a folder or file. Raises UserError.

    Not from Horovod's records, whose times contain its cycle.
    """
    records = records_at(place)
    found = of_records(records, carrier)
    if not found:
        raise UserError(f"NETWORK={place} has no all-reduce by {carrier} with three sizes or more: measure one with "
                        f"`make network BACKENDS={carrier}`")  # fmt: skip
    return found


def records_at(place: str) -> list[network_record.NetworkRecord]:
    """Of `bench network` in a folder or file, oldest first. Raises UserError."""
    path = Path(place).expanduser()
    one = packed.holds_file(path)
    if not one and not packed.holds_records(path):
        raise UserError(f"NETWORK={place} does not exist: name the output folder of `make network`")
    return [network_record.load(path)] if one else network_record.find(path)[0]


def measured_peak(place: str, carrier: str, config: RunConfig) -> tuple[float | None, str]:
    """TFLOP/s of the slowest device's matrix products, and their record, for the devices of a run: in its precision, on
    a CPU with its number of threads. (None, why) without them."""
    threads = {"gloo": config.threads_per_process}.get(carrier)
    for record in reversed(records_at(place)):
        best = best_products(record).get(config.precision) if record.backend == carrier else None
        if best and threads in (None, record.config.threads_per_process):
            return min(best[1]) / 1e12, f"{config.precision}, the measured peak: {record.run_id}"
    by = f" by {threads} thread{'s' * (threads > 1)} per process" if threads else ""
    return None, f"MFU is unknown: NETWORK={place} has no matrix products in {config.precision}{by}"


def of_records(records: list[network_record.NetworkRecord], carrier: str) -> Link | None:
    """The link from the newest fitted all-reduce by the carrier; None without one. records: oldest first."""
    fitted = [series for series in series_of([record for record in records if record.backend == carrier])
              if series.of_all and series.fit and series.fit.beta[0] > 0]  # fmt: skip
    reduces = [series for series in fitted if series.operation.name == "all_reduce"]
    if not reduces:
        return None
    series = reduces[-1]
    halves = {each.operation.name: each for each in fitted if each.record is series.record and each is not series}
    words = f"alpha {1e6 * series.fit.alpha[0]:.3g} µs, beta {1e9 * series.fit.beta[0]:.3g} ns per byte, measured"
    measured = " and ".join(WORDS[name] for name in halves)
    link = of_series(series, f"{words}{', as are ' * bool(halves)}{measured} ({series.record.run_id})")
    # Gloo: the engine adds an all-gather's idle time, by the number of ranks; its reduce-scatter is an all-reduce.
    gloo, n = carrier == "gloo", series.ranks
    alone = 2 * (n - 1) / (2 * n - 1) if gloo else 1.0
    gather, scatter = (halves.get(name) for name in ("all_gather", "reduce_scatter"))
    return dataclasses.replace(
        link,
        gather=gather and dataclasses.replace(of_series(gather, "", 1.0, alone), idle_in_beta=False),
        scatter=scatter and of_series(scatter, "", *((0.5, 0.5) if gloo else (1.0, 1.0))),
    )


def of_series(series: Series, words: str, alphas: float = 1.0, betas: float = 1.0) -> Link:
    """alphas, betas: factors."""
    alpha, *alpha_ends = (None if x is None else alphas * x for x in series.fit.alpha)
    beta, *beta_ends = (None if x is None else betas * x for x in series.fit.beta)
    fast, slow = (beta / end if end and end > 0 else 1.0 for end in beta_ends)
    return Link(max(0.0, alpha), beta, words, series.record.backend, tuple(alpha_ends), tuple(beta_ends),
                idle_in_beta=True, rate_mbit=limit_of(series.record.network), reached=(slow, fast))  # fmt: skip
