"""Where the step goes: its phases as a stacked bar per mode, and below them the exposed communication (result.py).

A bar is as long as a step takes its slowest rank, averaged over the rounds. Phases are the host's times on a CPU and
times between CUDA events on a GPU; the wait for data is the host's time on both, so on a GPU only what the phases leave
of the step is drawn of it.
"""

import statistics

from bench.analysis import style
from bench.analysis.lanes import PHASES
from bench.analysis.stats import FEWEST_ROUNDS
from bench.studies.breakdown.result import bare_of, exposed_comm, exposed_words, phases_ms, step_ms

ROW = 0.42  # inches


@style.styled
def draw(result):
    suite = result.suite
    bare = {label: bare_of(suite, program) for label, program in suite.programs.items()}
    exposed = {label: exposed_comm(suite.programs[label], other) for label, other in bare.items() if other}
    key = "Mean over rounds of the slowest rank's steps; "
    key += (
        "CUDA events; the host's wait for data is cut to what the phases leave of the step. "
        if suite.device == "cuda"
        else "the host's times. "
    )
    key += "`no_sync`: the same run without any exchange."
    more = [key]
    if exposed:
        rounds = " (dots), with its 95 % interval." if suite.n >= FEWEST_ROUNDS else "; a preview: no interval."
        more.append("Exposed communication: what communication adds to the step, buffers and the cores that it takes "
                    "included: the step less its no_sync step, by round" + rounds)  # fmt: skip
    heights = [ROW * len(suite.programs) + 0.95] + ([0.62 * len(exposed) + 0.65] if exposed else [])
    paper = style.canvas(suite, "Where the step goes", sum(heights), result.certificate, tuple(more))
    panels = style.axes_on(paper, len(heights), sharex=bool(exposed), height_ratios=heights)
    draw_phases(panels[0], suite)
    if exposed:
        draw_exposed(panels[1], suite, exposed)
    panels[-1].set_xlabel("milliseconds per step")
    return paper.figure


def draw_phases(axes, suite) -> None:
    split = {program.label: phases_ms(program.records) for program in suite.programs.values()}
    for y, (label, phases) in enumerate(split.items()):
        step = statistics.fmean(map(step_ms, suite.programs[label].records))
        left = 0.0
        for name, look in PHASES.items():
            axes.barh(y, phases[name], 0.66, left, facecolor=look.colour, edgecolor="black", linewidth=0.7,
                      hatch=look.hatch, label=name if y == 0 else None)  # fmt: skip
            left += phases[name]
        axes.annotate(style.number(step), (left, y), (4, 0), textcoords="offset points", va="center",
                      size=style.SMALL)  # fmt: skip
    style.name_rows(axes, split)
    axes.tick_params(axis="x", labelbottom=True)
    axes.margins(x=0.1)
    style.vertical_grid(axes)
    style.legend_above(axes, 3)


def draw_exposed(axes, suite, exposed: dict) -> None:
    looks, limits = style.looks(suite), limits_of(suite, exposed)
    axes.set_xlim(limits)
    axes.axvline(0, color=style.BLACK, linewidth=1)
    for y, (label, (each, mean, low, high)) in enumerate(exposed.items()):
        look = looks[label]
        heights = [y + 0.22 + 0.06 * ((i % 3) - 1) for i in range(len(each))]
        axes.plot(each, heights, look.marker, color=look.colour, markersize=4.5, alpha=0.9, markeredgecolor="white",
                  markeredgewidth=0.5)  # fmt: skip
        if low is not None:
            style.draw_interval(axes, low, high, y + 0.42, limits, look.colour)
        axes.plot(mean, y + 0.42, "|", color="black", markersize=10, markeredgewidth=2)
        axes.text(0.985, y - 0.08, exposed_words(suite.programs[label], mean, low, high), va="center", ha="right",
                  size=style.SMALL, transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_yticks([y + 0.2 for y in range(len(exposed))], list(exposed))
    axes.set_ylim(len(exposed) - 0.3, -0.35)
    axes.tick_params(axis="y", length=0)
    axes.set_title("exposed communication", loc="left", size=style.TEXT)
    style.vertical_grid(axes)


def limits_of(suite, exposed: dict) -> tuple[float, float]:
    """The axis of milliseconds: all bars and all rounds are on it, and a little below 0 for intervals."""
    longest = max(step_ms(record) for program in suite.programs.values() for record in program.records)
    rounds = [x for each, *_ in exposed.values() for x in each]
    lows = [low for _, _, low, _ in exposed.values() if low is not None]
    return min(0.0, *rounds, max(-0.15 * longest, min(lows, default=0.0))), 1.15 * longest
