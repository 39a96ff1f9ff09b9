"""One step of each mode as it went, from the profiled runs: rank by rank its phases, what computed, what was sent.

Communication under computation is seen to coincide with it. That is no proof that it cost nothing: on a CPU both take
the same cores. What communication really costs is the step less the same step without any exchange (``no_sync``).
"""

import dataclasses

from bench.analysis import style
from bench.config.modes import MODES, Look
from bench.formulas import union
from bench.record.view import Record
from bench.studies.breakdown.result import latest, parts_ms, parts_words, timelines
from bench.studies.breakdown.step_figure import PHASES

MOST_RANKS = 4  # drawn of one mode; more would not be legible
LANE = 0.23  # inches: one lane of a rank
PANEL = 0.75  # inches of a panel besides its lanes: title and ticks
LEGEND_LINE = 0.2  # inches
COLUMNS = 5  # of the legend
PARTS_LANE = "dp"  # a lane, not a mode: the parts of DataParallel's forward
LANES = ("phase", PARTS_LANE, "compute", "communication")
LABELS = {"phase": "phase", PARTS_LANE: "parts", "compute": "compute", "communication": "comm.",
          "gather": "gather", "scatter": "scatter"}  # fmt: skip
COMPUTE = Look(style.GREY)
COMMUNICATION = (Look(style.VERMILION, "///"), Look(style.ORANGE, "..."))  # by turns
SHARDED = ("gather", "scatter")  # FSDP's communication, in a lane each
PARTS = {
    "scatter": Look(style.PURPLE, "xxx"),
    "replicate": Look(style.ORANGE, "///"),
    "forward": Look(style.SKY),
    "gather": Look(style.PALE, "\\\\\\"),
}
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
    """A panel for each program, each on its own scale, with the flag of the suite's comparison; None where no run of
    the suite holds a timeline."""
    suite, records = result.suite, latest(result.suite)
    if not records:
        return None
    layouts = {label: layout(record) for label, record in records.items()}
    heights = [LANE * sum(1 for _ in rows(ranks)) + PANEL for ranks in layouts.values()]
    more = list(KEY)
    for label, record in records.items():
        if len(timelines(record)) > MOST_RANKS:
            more.append(f"{label}: the first {MOST_RANKS} of {len(timelines(record))} ranks are drawn.")
        missing = [lane for lane in ("phase", "compute") if not any(lane in lanes for lanes in layouts[label].values())]
        if missing:
            more.append(f"{label}: {' and '.join(missing)} could not be recorded.")
    handles = legend_of(layouts)
    legend = LEGEND_LINE * -(-len(handles) // COLUMNS) + 0.05
    paper = style.canvas(suite, "One step of each mode: what runs when", sum(heights) + 0.3 + legend,
                        result.certificate, (*more,), "n = 1 step per mode")  # fmt: skip
    bottom, top = paper.body
    if handles:
        paper.figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, top), ncols=COLUMNS,
                            handlelength=1.8, columnspacing=1.1, borderaxespad=0.2)  # fmt: skip
    paper = dataclasses.replace(paper, body=(bottom, top - legend / paper.height))
    panels = style.axes_on(paper, len(heights), height_ratios=heights)
    for axes, (label, ranks) in zip(panels, layouts.items(), strict=True):
        axes.set_xlim(0, 1000 * max(t["step_s"] for t in timelines(records[label]).values()))
        draw_panel(axes, label, records[label], ranks)
    panels[-1].set_xlabel("milliseconds from the start of the step on that rank")
    return paper.figure


def layout(record: Record) -> dict[int, dict[str, list[list[dict]]]]:
    """Rank -> lane -> tracks, each a list of spans that do not overlap; a track a thread or device in the compute lane.

    A lane without a span is left out.
    """
    ranks = {}
    for rank, timeline in list(timelines(record).items())[:MOST_RANKS]:
        lanes = {}
        for lane in LANES:
            spans = [span for span in timeline["spans"] if span["lane"] == lane]
            if spans:
                by_name = {}
                for span in spans:
                    by_name.setdefault(span["name"] if lane == "compute" else lane_of(span), []).append(span)
                for named, theirs in by_name.items():
                    lanes.setdefault(lane if lane == "compute" else named, []).extend(tracks(theirs))
        ranks[rank] = lanes
    return ranks


def lane_of(span: dict) -> str:
    """The lane in which a span is drawn.

    >>> [lane_of({"lane": "communication", "name": name}) for name in ("gather layer1.0", "bucket 0")]
    ['gather', 'communication']
    """
    kind = span["name"].partition(" ")[0]
    return kind if span["lane"] == "communication" and kind in SHARDED else span["lane"]


def tracks(spans: list[dict]) -> list[list[dict]]:
    """Spans on as few tracks as they need so that none covers another.

    >>> [[s["name"] for s in track] for track in tracks([
    ...     {"name": "a", "start_s": 0, "end_s": 3}, {"name": "b", "start_s": 1, "end_s": 2},
    ...     {"name": "c", "start_s": 3, "end_s": 4}])]
    [['a', 'c'], ['b']]
    """
    found = []
    for span in sorted(spans, key=lambda s: s["start_s"]):
        free = next((track for track in found if track[-1]["end_s"] <= span["start_s"]), None)
        if free is None:
            found.append([span])
        else:
            free.append(span)
    return found


def rows(ranks: dict):
    """(rank, lane, track) from the top of a panel down."""
    for rank, lanes in ranks.items():
        for lane, lane_tracks in lanes.items():
            for track in lane_tracks:
                yield rank, lane, track


def draw_panel(axes, label: str, record: Record, ranks: dict) -> None:
    """One mode."""
    labels, before = [], None
    total = 0
    for y, (rank, lane, track) in enumerate(rows(ranks)):
        first = before is None or before[0] != rank
        if first and y:
            axes.axhline(y - 0.5, color=style.BLACK, linewidth=0.6)
        name = "" if before == (rank, lane) else LABELS[lane]
        labels.append(f"rank {rank}  {name}" if first else name)
        before = (rank, lane)
        for number, span in enumerate(track):
            draw_span(axes, y, lane, span, number)
        total = y + 1
    axes.set_yticks(range(total), labels, size=style.SMALL)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(total - 0.45, -0.55)
    lines = style.wrapped(f"{label}: {words(record)}", style.SMALL + 0.5, style.WIDTH - 1.3)
    axes.set_title("\n".join(lines), loc="left", size=style.SMALL + 0.5, pad=3, linespacing=1.2)
    style.vertical_grid(axes)


def draw_span(axes, y: int, lane: str, span: dict, number: int) -> None:
    """One span, with its name where it is wide enough for it."""
    start, width = 1000 * span["start_s"], 1000 * (span["end_s"] - span["start_s"])
    look = look_of(lane, span, number)
    edge = {"edgecolor": "none"} if lane == "compute" else {"edgecolor": style.BLACK, "linewidth": 0.5}
    axes.barh(y, width, 0.78, start, facecolor=look.colour, hatch=look.hatch, **edge)
    if lane in ("communication", *SHARDED):
        shown = axes.get_xlim()[1]
        inches = width / shown * (style.WIDTH - 1.5)
        size = style.SMALL - 1.5
        for text in (label_of(span), label_of(span).partition(":")[0]):
            if len(text) * size * 0.6 / 72 + 0.04 <= inches:
                axes.text(start + width / 2, y, text, ha="center", va="center", size=size, bbox={
                    "facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6})  # fmt: skip
                break


def label_of(span: dict) -> str:
    """What is written on a span of communication.

    >>> label_of({"name": "bucket 1", "bytes": 26494976}), label_of({"name": "buffers", "bytes": None})
    ('1: 25 MiB', 'buffers')
    """
    number = span["name"].rpartition(" ")[2]
    return number if span["bytes"] is None else f"{number}: {span['bytes'] / 2**20:.2g} MiB"


def look_of(lane: str, span: dict, number: int) -> Look:
    """How a span is drawn."""
    if lane == "phase":
        return PHASES.get(span["name"], PHASES["other"])
    if lane == PARTS_LANE or lane in SHARDED:
        return PARTS.get(lane if lane in SHARDED else span["name"], COMPUTE)
    return COMMUNICATION[number % 2] if lane == "communication" else COMPUTE


def words(record: Record) -> str:
    """What a panel says of its step: its length, and the share of communication that overlaps with computation."""
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


def legend_of(layouts: dict) -> list:
    """Patches for the phases, parts and lanes that occur."""
    from matplotlib.patches import Patch

    spans = [span for ranks in layouts.values() for _, _, track in rows(ranks) for span in track]
    seen = {(lane_of(span), lane_of(span) if lane_of(span) in SHARDED else span["name"]) for span in spans}
    shown = {name: look for name, look in PHASES.items() if ("phase", name) in seen}
    shown |= {name: look for name, look in PARTS.items()
              if name not in shown and {(PARTS_LANE, name), (name, name)} & seen}  # fmt: skip
    shown |= {"compute": COMPUTE} if any(lane == "compute" for lane, _ in seen) else {}
    shown |= {"comm.": COMMUNICATION[0]} if any(lane == "communication" for lane, _ in seen) else {}
    return [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor=style.BLACK, linewidth=0.5, label=name)
        for name, look in shown.items()
    ]
