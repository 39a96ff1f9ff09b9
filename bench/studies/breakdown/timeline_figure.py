"""One step of each mode as it went, from the profiled runs: rank by rank its phases, what computed, what was sent.

Communication under computation is seen to coincide with it. That is no proof that it cost nothing: on a CPU both take
the same cores. What communication really costs is the step less the same step without any exchange (``no_sync``).
"""

from bench.analysis import lanes, style
from bench.analysis.lanes import SHARDED, Lanes, Panel
from bench.config.modes import MODES
from bench.formulas import union
from bench.record.view import Record
from bench.studies.breakdown.result import latest, parts_ms, parts_words, timelines

MOST_RANKS = 4  # drawn of one mode; more would not be legible
KEY = (
    "One step under a profiler, which slows it; each panel has its own scale. compute: operators, a row per thread "
    "(CPU), or work on the model's stream, a row per device (GPU). comm.: number and MiB of a bucket (DDP; from its "
    "launch, so waiting for the other ranks is in it) or a fused reduction (Horovod); at the start rank 0's buffers, "
    "at the end the weights (zero1). gather, scatter: a block's weights from all ranks, its gradients to them (fsdp).",
    "That communication overlaps with computation is no proof that it cost nothing: "
    "the upper bound is the run without exchange (no_sync).",
)


@style.styled
def draw(result):
    """A panel for each program, each on its own scale; None where no run of the suite holds a timeline."""
    suite, records = result.suite, latest(result.suite)
    if not records:
        return None
    panels = {label: panel_of(label, record) for label, record in records.items()}
    more = list(KEY)
    for label, record in records.items():
        if len(timelines(record)) > MOST_RANKS:
            more.append(f"{label}: the first {MOST_RANKS} of {len(timelines(record))} ranks are drawn.")
        ranks = panels[label].groups.values()
        missing = [lane for lane in ("phase", "compute") if not any(lane in found for found in ranks)]
        if missing:
            more.append(f"{label}: {' and '.join(missing)} could not be recorded.")
    return lanes.draw(suite, "One step of each mode: what runs when", list(panels.values()),
                      "milliseconds from the start of the step on that rank", result.certificate, tuple(more),
                      "n = 1 step per mode")  # fmt: skip


def panel_of(label: str, record: Record) -> Panel:
    end_s = max(timeline["step_s"] for timeline in timelines(record).values())
    return Panel(f"{label}: {words(record)}", {f"rank {rank}": found for rank, found in layout(record).items()}, end_s)


def layout(record: Record) -> dict[int, Lanes]:
    found = list(timelines(record).items())[:MOST_RANKS]
    return {rank: lanes.lanes_of(timeline["spans"]) for rank, timeline in found}


def words(record: Record) -> str:
    found = timelines(record)
    lengths = [1000 * timeline["step_s"] for timeline in found.values()]
    text = f"{max(lengths):.{0 if max(lengths) >= 100 else 1}f} ms"
    shares = {rank: hidden_share(timeline["spans"]) for rank, timeline in found.items()}
    known = {rank: share for rank, share in shares.items() if share is not None}
    if known and "local_steps" in MODES[record.config.mode].knobs:
        text += f"; the step in which weights are averaged, one of {record.config.local_steps}"
    parts = parts_ms(record)
    if known:
        each = ", ".join(f"{100 * share:.0f} % (rank {rank})" for rank, share in list(known.items())[:MOST_RANKS])
        text += "".join(f"; {sent}" for sent in sharded_words(next(iter(found.values()))["spans"]))
        text += f"; of communication, {each} overlaps with computation: no proof that it is free"
        text += " (upper bound: no_sync)" if "sync" in MODES[record.config.mode].knobs else ""
    elif parts:
        share = 100 * sum(parts.values()) / sum(lengths)
        text += f"; scatter, replicate and gather take {share:.2g} %: {parts_words(parts)}"
        text += "; gradients are added up inside backward"
    else:
        text += "; no communication" if len(found) == 1 else "; no communication was seen"
    return text


def sharded_words(spans: list[dict]) -> list[str]:
    """What a rank receives of weights and sends of gradients in all, of a mode that shards.

    >>> sharded_words([{"lane": "communication", "name": f"gather {i}", "bytes": 2**20} for i in range(3)])
    ['gather: 3 MiB in all']
    """
    sent = {}
    for span in spans:
        kind = span["name"].partition(" ")[0]
        if span["lane"] == "communication" and kind in (*SHARDED, "weights"):
            sent[kind] = sent.get(kind, 0) + span["bytes"]
    return [f"{kind}: {size / 2**20:.3g} MiB in all" for kind, size in sent.items()]


def hidden_share(spans: list[dict]) -> float | None:
    """The share, 0 to 1, of the time with communication in which the rank also computed; None without communication.

    >>> sent, busy = {"lane": "communication", "start_s": 0, "end_s": 4}, {"lane": "compute", "start_s": 3, "end_s": 9}
    >>> hidden_share([sent, busy])
    0.25
    """
    sent = union([(s["start_s"], s["end_s"]) for s in spans if s["lane"] == "communication"])
    busy = union([(s["start_s"], s["end_s"]) for s in spans if s["lane"] == "compute"])
    if not sent or not busy:
        return None
    both = sum(max(0, min(b, d) - max(a, c)) for a, b in sent for c, d in busy)
    return both / sum(end - start for start, end in sent)
