"""Figures of a forecast: efficiency over devices, and the timeline of one step.

Efficiency is throughput over that of as many independent devices. The timeline has the profile's median step on every
rank, predicted and emulated, so nobody waits for a slower rank.
"""

import itertools
import math

from bench import formulas
from bench.analysis import lanes, style
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.predict.emulation.record import EmulationRecord
from bench.predict.pictures.points import Asked, Points, by_place, disturbed, how_emulated, span_words
from bench.predict.step import result
from bench.predict.step.engines import BACKWARD, ENGINES, FORWARD, OPTIMIZER, REST, WEIGHTS, Step
from bench.predict.step.fit import Fit
from bench.predict.step.result import PREDICTED, Forecast

BODY = 3.9  # inches
FILLED, HOLLOW = "o", "s"  # marks: measured, emulated
DODGE = 0.1  # of a doubling, between marks at the same number of devices
ROUNDING_S = 1e-9
KEY = (
    "compute: the device is busy; in the gaps it waits for messages, or for work of the backend. comm.: number and MiB "
    "of a gradient bucket (ddp, zero1; emulated: from its launch) or of a fused reduction (horovod); at the end of the "
    "step the weights (zero1). gather: a block's weights from all ranks (fsdp). scatter: its gradients to all ranks."
)


def figures(asked: Asked, found: list[Forecast], points: Points) -> dict:
    """The figures by name; the timeline is at the largest number of devices. A fit has none: it does not say when in a
    step a loss is."""
    efficiency = draw_efficiency(asked, found, points)
    if asked.fits:
        return {"forecast-fitted": efficiency}
    most = max(each.ranks for each in found)
    return {"forecast-efficiency": efficiency, "forecast-timeline": draw_timeline(asked, most, points)}


# --- efficiency over devices --------------------------------------------------------------------------------------


@style.styled
def draw_efficiency(asked: Asked, found: list[Forecast], points: Points):
    """A line with its interval for each mode as predicted; filled marks are measured, hollow ones emulated."""
    kinds = {"measured": (points.measured, FILLED), "emulated": (points.emulated, HOLLOW)}
    said = [PREDICTED, *(kind for kind, (records, _) in kinds.items() if records)]
    title = f"Efficiency over devices: {', '.join(said)}"
    paper = style.canvas(None, title, BODY, None, tuple(foot(asked, points)))
    (axes,) = style.axes_on(paper)
    lines = {}
    for each in sorted([*found, *powers_of_two(asked, found)], key=lambda each: each.ranks):
        lines.setdefault(each.mode, []).append(each)
    for mode, line in lines.items():
        draw_line(axes, mode, line)
        if fit := asked.fits.get(mode):
            draw_linear(axes, mode, fit, line[-1].ranks)
    for records, marker in kinds.values():
        draw_points(axes, asked, records, marker)
    drawn = by_place([*points.measured, *points.emulated])
    counts = sorted({1, *(each.ranks for each in found), *(ranks for _, ranks in drawn)})
    axes.set_xticks([math.log2(count) for count in counts], [str(count) for count in counts])
    axes.set(ylim=(0, 105), xlabel="devices", ylabel="efficiency, %")
    axes.minorticks_off()
    style.horizontal_grid(axes)
    style.legend_above(axes, 4, handles_of(found, kinds, bool(asked.fits)))
    return paper.figure


def powers_of_two(asked: Asked, found: list[Forecast]) -> list[Forecast]:
    """Forecasts at the missing powers of two: efficiency between two points is not a straight line."""
    there = {(each.mode, each.ranks) for each in found}
    powers = [2**power for power in range(1, max(each.ranks for each in found).bit_length())]
    return [asked.forecast(mode, ranks) for mode in asked.configs for ranks in powers if (mode, ranks) not in there]


def draw_line(axes, mode: str, found: list[Forecast]) -> None:
    look = MODES[mode].look
    xs = [0.0, *(math.log2(each.ranks) for each in found)]
    axes.plot(xs, [100, *(100 * each.efficiency for each in found)], color=look.colour, linestyle=look.line)
    ends = [each.efficiency_ends or (each.efficiency,) * 2 for each in found]
    lows, highs = ([100, *(100 * end[i] for end in ends)] for i in (0, 1))
    axes.fill_between(xs, lows, highs, color=look.colour, alpha=0.25, linewidth=0)


def draw_linear(axes, mode: str, fit: Fit, most: int) -> None:
    """The efficiency of the largest measured point, as linear scaling keeps it."""
    last = fit.points[-1]
    efficiency = 100 * fit.alone_s / last.step_s
    if most > last.ranks:
        axes.plot([math.log2(last.ranks), math.log2(most)], [efficiency] * 2, linestyle=(0, (1, 1.5)), linewidth=1.2,
                  color=MODES[mode].look.colour)  # fmt: skip


def draw_points(axes, asked: Asked, records: list, marker: str) -> None:
    """A mark for each mode and number of devices: the mean of its records, with the interval of several."""
    modes = list(asked.configs)
    for (mode, ranks), same in by_place(records).items():
        x = math.log2(ranks) + DODGE * (modes.index(mode) - (len(modes) - 1) / 2)
        middle, low, high = result.mean_interval([100 * asked.efficiency(record) for record in same])
        if low is not None:
            axes.plot([x, x], [low, high], color=style.BLACK, linewidth=1)
        colour = MODES[mode].look.colour
        look = {"markerfacecolor": colour, "markersize": 5, "markeredgecolor": style.BLACK, "markeredgewidth": 0.8}
        if marker == HOLLOW:
            look = {"markerfacecolor": "none", "markersize": 8, "markeredgecolor": colour, "markeredgewidth": 1.8}
        axes.plot(x, middle, marker, zorder=3, **look)


def handles_of(found: list[Forecast], kinds: dict, fitted: bool) -> list:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    looks = {each.mode: MODES[each.mode].look for each in found}
    handles = [Line2D([], [], color=look.colour, linestyle=look.line, label=mode) for mode, look in looks.items()]
    handles.append(Line2D([], [], color=style.GREY, label=f"{PREDICTED}, fitted" if fitted else PREDICTED))
    if fitted:
        handles.append(Line2D([], [], color=style.GREY, linestyle=(0, (1, 1.5)), linewidth=1.2,
                              label="linear scaling"))  # fmt: skip
    if any(each.low_s is not None for each in found):
        handles.append(Patch(facecolor=style.GREY, alpha=0.35, label="95 % CI of the prediction"))
    for kind, (records, marker) in kinds.items():
        face = style.WHITE if marker == HOLLOW else style.GREY
        if records:
            handles.append(Line2D([], [], color=style.GREY, linestyle="none", marker=marker, markerfacecolor=face,
                                  label=kind))  # fmt: skip
    return handles


def foot(asked: Asked, points: Points) -> list[str]:
    lines = ["Efficiency: throughput divided by that of the same number of independent devices (from the profile).",
             *asked.provenance_lines()]  # fmt: skip
    limits = result.limits(len(asked.profile.factors), asked.link, bool(asked.fits))
    lines.append(f"The {limits[0].removeprefix('the ')}.")
    if asked.fits:
        lines.append("Linear scaling: of the largest measured point.")
    if points.measured:
        n = span_words([len(records) for records in by_place(points.measured).values()], "{:g}")
        networks = sorted({record.network or "processes of one machine" for record in points.measured})
        lines.append(f"Measured: n = {n} rounds, bars: 95 % CI; {'; '.join(networks)}{disturbed(points.measured)}.")
    return lines + how_emulated(points.emulated)


# --- the timeline of one step -------------------------------------------------------------------------------------


@style.styled
def draw_timeline(asked: Asked, most: int, points: Points):
    """A panel for each mode, on as many devices as the largest emulation with a timeline has, or on ``most``."""
    with_one = [record for record in points.emulated if record.timeline]
    ranks = max((record.num_devices for record in with_one), default=most)
    beside = {record.config.mode: record for record in with_one if record.num_devices == ranks}
    panels = [panel_of(config, asked, ranks, beside.get(mode)) for mode, config in asked.configs.items()]
    unseen = [f"{mode}: the emulation records no messages of this backend." for mode, record in beside.items()
              if not any(span["lane"] == "communication" for span in record.timeline)]  # fmt: skip
    foot = (KEY, *asked.provenance_lines(), *how_emulated(list(beside.values())), *unseen)
    what = "predicted, emulated (rank 0)" if beside else "predicted"
    title = f"One step on {ranks} devices: {what}"
    return lanes.draw(None, title, panels, "milliseconds from the start of the step", more=foot)


def panel_of(config: RunConfig, asked: Asked, ranks: int, record: EmulationRecord | None) -> lanes.Panel:
    step = ENGINES[config.mode](asked.profile, config, ranks, asked.link)
    spans, ends = {PREDICTED: spans_of(step)}, {PREDICTED: step.seconds}
    if record:
        spans[record.kind] = record.timeline
        ends[record.kind] = max(span["end_s"] for span in record.timeline if span["lane"] == "phase")
    title = "; ".join(f"{style.number(1e3 * end)} ms {kind}" for kind, end in ends.items())
    groups = {name: lanes.lanes_of(found) for name, found in spans.items()}
    return lanes.Panel(f"{config.mode}: {title}", groups, max(ends.values()))


def spans_of(step: Step) -> list[dict]:

    def span(lane: str, name: str, begin: float, end: float, nbytes: int | None = None) -> dict:
        return {"lane": lane, "name": name, "start_s": begin, "end_s": end, "bytes": nbytes}

    found = [span("phase", name, begin, end) for name, begin, end in phases_of(step)]
    busy = formulas.union([(begin, end) for _, begin, end in step.computed], gap=ROUNDING_S)
    found += [span("compute", "device", begin, end) for begin, end in busy]
    weights = [entry for entry in step.sent if entry[0] == WEIGHTS]  # one message for each parameter
    sent = [entry for entry in step.sent if entry[0] != WEIGHTS]
    if weights:
        begins, ends, sizes = zip(*(entry[1:] for entry in weights), strict=True)
        sent.append(("weights", min(begins), max(ends), sum(sizes)))
    return found + [span("communication", *entry) for entry in sent]


def phases_of(step: Step) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the phases as a clock measures them, with the waits in each: buffers are sent at the
    beginning of forward, weights at the end of the optimizer's step."""
    ends = {name: max(end for what, _, end in step.computed if what == name) for name in (REST, FORWARD, BACKWARD)}
    exchanged = next(begin for what, begin, _ in step.computed if what == OPTIMIZER)
    ends |= {step.waits_in: exchanged, OPTIMIZER: step.seconds}
    pairs = itertools.pairwise([0.0, *ends.values()])
    return [(name, begin, end) for name, (begin, end) in zip(ends, pairs, strict=True) if end > begin]
