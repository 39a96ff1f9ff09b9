"""A step drawn: panels of lanes of spans (lane, name, start_s, end_s, bytes) over time."""

import dataclasses
from dataclasses import dataclass

from bench.analysis import style
from bench.analysis.suite import group_by
from bench.config.modes import PlotStyle

LANE = 0.23  # inches: one lane
PANEL = 0.75  # inches of a panel, without its lanes: title and ticks
LEGEND_LINE = 0.2  # inches
COLUMNS = 5  # of the legend
PARTS_LANE = "dp"  # a lane, not a mode: the parts of DataParallel's forward
LANES = ("phase", PARTS_LANE, "compute", "communication")
LABELS = {"phase": "phase", PARTS_LANE: "parts", "compute": "compute", "communication": "comm.",
          "gather": "gather", "scatter": "scatter"}  # fmt: skip
PHASES = {
    "data wait": PlotStyle(style.YELLOW, "..."),
    "forward": PlotStyle(style.SKY, ""),
    "backward": PlotStyle(style.BLUE, "///"),
    "synchronize": PlotStyle(style.VERMILION, "xxx"),
    "optimizer": PlotStyle(style.GREEN, "---"),
    "other": PlotStyle(style.WHITE, ""),
}
COMPUTE = PlotStyle(style.GREY)
COMMUNICATION = (PlotStyle(style.VERMILION, "///"), PlotStyle(style.ORANGE, "..."))  # by turns
SHARDED = ("gather", "scatter")  # FSDP's communication, in a lane each
PARTS = {
    "scatter": PlotStyle(style.PURPLE, "xxx"),
    "replicate": PlotStyle(style.ORANGE, "///"),
    "forward": PlotStyle(style.SKY),
    "gather": PlotStyle(style.PALE, "\\\\\\"),
}

Lanes = dict[str, list[list[dict]]]  # lane -> tracks, each a list of spans that do not overlap


@dataclass(frozen=True)
class Panel:
    title: str
    groups: dict[str, Lanes]  # by name, as "rank 0"
    end_s: float  # of the longest


def draw(suite, title: str, panels: list[Panel], xlabel: str, certificate=None, more: tuple = (), n: str | None = None):
    """The panels one above the other, each on its own scale. The rest: as in ``style.canvas``."""
    heights = [LANE * len(rows(panel.groups)) + PANEL for panel in panels]
    handles = legend_of(panels)
    legend = LEGEND_LINE * -(-len(handles) // COLUMNS) + 0.05
    paper = style.canvas(suite, title, sum(heights) + 0.3 + legend, certificate, more, n)
    bottom, top = paper.body
    if handles:
        paper.figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, top), ncols=COLUMNS,
                            handlelength=1.8, columnspacing=1.1, borderaxespad=0.2)  # fmt: skip
    paper = dataclasses.replace(paper, body=(bottom, top - legend / paper.height))
    drawn = style.axes_on(paper, len(heights), height_ratios=heights)
    for axes, panel in zip(drawn, panels, strict=True):
        axes.set_xlim(0, 1000 * panel.end_s)
        draw_panel(axes, panel)
    drawn[-1].set_xlabel(xlabel)
    return paper.figure


def lanes_of(spans: list[dict]) -> Lanes:
    """Spans by lane; in the compute lane a track is a thread or device. Empty lanes are left out."""
    lanes = {}
    for lane in LANES:
        by_name = group_by(
            (span for span in spans if span["lane"] == lane),
            lambda span: span["name"] if span["lane"] == "compute" else lane_of(span),
        )
        for name, theirs in by_name.items():
            lanes.setdefault(lane if lane == "compute" else name, []).extend(tracks(theirs))
    return lanes


def lane_of(span: dict) -> str:
    """The lane in which a span is drawn: FSDP's communication has one per kind."""
    kind = span["name"].partition(" ")[0]
    return kind if span["lane"] == "communication" and kind in SHARDED else span["lane"]


def tracks(spans: list[dict]) -> list[list[dict]]:
    """Spans on the fewest tracks on which none overlaps another.

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


def rows(groups: dict[str, Lanes]) -> list[tuple[str, str, list[dict]]]:
    return [(group, lane, track) for group, lanes in groups.items() for lane in lanes for track in lanes[lane]]


def draw_panel(axes, panel: Panel) -> None:
    labels, before, row = [], None, 1
    for y, (group, lane, track) in enumerate(rows(panel.groups)):
        first = before is None or before[0] != group
        if first and y:
            axes.axhline(y - 0.5, color=style.BLACK, linewidth=0.6)
        row = row + 1 if before == (group, lane) else 1
        name = f"{LABELS[lane]} {row}" if row > 1 else LABELS[lane]
        labels.append(f"{group}  {name}" if first else name)
        before = (group, lane)
        for number, span in enumerate(track):
            draw_span(axes, y, lane, span, number)
    style.name_rows(axes, labels, size=style.SMALL)
    lines = style.wrapped(panel.title, style.SMALL + 0.5, style.WIDTH - 1.3)
    axes.set_title("\n".join(lines), loc="left", size=style.SMALL + 0.5, pad=3, linespacing=1.2)
    style.finish(axes)


def draw_span(axes, y: int, lane: str, span: dict, number: int) -> None:
    start, width = 1000 * span["start_s"], 1000 * (span["end_s"] - span["start_s"])
    look = look_of(lane, span, number)
    edge = {"edgecolor": "none"} if lane == "compute" else {"edgecolor": style.BLACK, "linewidth": 0.5}
    axes.barh(y, width, 0.78, start, facecolor=look.colour, hatch=look.hatch, **edge)
    if lane in ("communication", *SHARDED):
        inches, size = width / axes.get_xlim()[1] * (style.WIDTH - 1.5), style.SMALL - 1.5
        for text in (label_of(span), label_of(span).partition(":")[0]):
            if len(text) * size * 0.6 / 72 + 0.04 <= inches:
                axes.text(start + width / 2, y, text, ha="center", va="center", size=size, bbox={
                    "facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6})  # fmt: skip
                break


def label_of(span: dict) -> str:
    """The label of a communication span: '1: 25 MiB', or 'buffers' without a size."""
    number = span["name"].rpartition(" ")[2]
    return number if span["bytes"] is None else f"{number}: {span['bytes'] / 2**20:.2g} MiB"


def look_of(lane: str, span: dict, number: int) -> PlotStyle:
    if lane == "phase":
        return PHASES.get(span["name"], PHASES["other"])
    if lane == PARTS_LANE or lane in SHARDED:
        return PARTS.get(lane if lane in SHARDED else span["name"], COMPUTE)
    return COMMUNICATION[number % 2] if lane == "communication" else COMPUTE


def legend_of(panels: list[Panel]) -> list:
    """FSDP's communication is listed by lane; a phase that is not in PHASES is "other"."""
    from matplotlib.patches import Patch

    seen = set()
    for panel in panels:
        for _, lane, track in rows(panel.groups):
            names = {lane if lane in SHARDED else span["name"] for span in track}
            seen |= {(lane, "other" if lane == "phase" and name not in PHASES else name) for name in names}
    shown = {name: look for name, look in PHASES.items() if ("phase", name) in seen}
    shown |= {name: look for name, look in PARTS.items()
              if name not in shown and {(PARTS_LANE, name), (name, name)} & seen}  # fmt: skip
    lanes = {lane for lane, _ in seen}
    shown |= {"compute": COMPUTE} if "compute" in lanes else {}
    shown |= {"comm.": COMMUNICATION[0]} if "communication" in lanes else {}
    return [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor=style.BLACK, linewidth=0.5, label=name)
        for name, look in shown.items()
    ]
