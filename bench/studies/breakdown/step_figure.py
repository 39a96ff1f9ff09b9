"""Where the step goes: its phases as a stacked bar a mode, and below them the communication that is not hidden.

A bar is as long as a step takes its slowest rank, averaged over the rounds, so that its phases add up to the step.
Phases are the host's times on a CPU and times between CUDA events on a GPU. The wait for data is the host's time on
both: on a GPU the device may still compute meanwhile, so only what the phases leave of the step is drawn of it.

The exposed communication of a mode is what communication adds to the step: its step time less that of the same run
without any exchange (`no_sync`), paired by round. Whatever goes away with the exchange is in it: DDP's broadcast of
buffers, and on a CPU the cores that communication takes from computation.
"""

import statistics

from bench import formulas
from bench.analysis import stats, style

ROW = 0.42  # inches
PHASES = {
    "data wait": style.Look(style.YELLOW, "..."),
    "forward": style.Look(style.SKY, ""),
    "backward": style.Look(style.BLUE, "///"),
    "synchronize": style.Look(style.VERMILION, "xxx"),
    "optimizer": style.Look(style.GREEN, "---"),
    "other": style.Look(style.WHITE, ""),
}
BARE = "no_sync"  # what a role without the exchange of gradients adds to its mode's name


@style.styled
def draw(suite_or_result):
    """Stacked bars of the phases; below, where there are runs without exchange, the exposed communication."""
    result = style.result_of(suite_or_result)
    suite = result.suite
    exposed = {role: exposed_comm(suite, role) for role in suite.roles if f"{role} {BARE}" in suite.roles}
    key = "Mean over rounds of the slowest rank's steps; "
    key += (
        "CUDA events; the host's wait for data is cut to what the phases leave of the step. "
        if suite.device == "cuda"
        else "the host's times. "
    )
    key += "`no_sync`: the same run without any exchange."
    more = [key]
    if exposed:
        more.append("Exposed communication: what communication adds to the step, buffers and the cores that it takes "
                    "included: the step less its no_sync step, by round"
                    + (" (dots), with its 95 % interval." if suite.n > 1 else "; one round: no interval."))  # fmt: skip
    heights = [ROW * len(suite.roles) + 0.95] + ([0.62 * len(exposed) + 0.65] if exposed else [])
    paper = style.sheet(suite, "Where the step goes", sum(heights), result.certificate, tuple(more))
    panels = style.axes_on(paper, len(heights), sharex=bool(exposed), height_ratios=heights)
    draw_phases(panels[0], suite)
    if exposed:
        draw_exposed(panels[1], suite, exposed)
    panels[-1].set_xlabel("milliseconds a step")
    return paper.figure


def draw_phases(axes, suite) -> None:
    """One stacked bar a role, phases in the order in which they happen."""
    split = {role: phases_ms(records) for role, records in suite.roles.items()}
    steps = {role: statistics.fmean(map(step_ms, records)) for role, records in suite.roles.items()}
    for y, (role, phases) in enumerate(split.items()):
        left = 0.0
        for name, look in PHASES.items():
            axes.barh(y, phases[name], 0.66, left, facecolor=look.colour, edgecolor="black", linewidth=0.7,
                      hatch=look.hatch, label=name if y == 0 else None)  # fmt: skip
            left += phases[name]
        axes.annotate(style.number(steps[role]), (left, y), (4, 0), textcoords="offset points", va="center",
                      size=style.SMALL)  # fmt: skip
    axes.set_yticks(range(len(split)), list(split))
    axes.set_ylim(len(split) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=True)
    axes.margins(x=0.1)
    style.vertical_grid(axes)
    style.legend_above(axes, 3)


def draw_exposed(axes, suite, exposed: dict) -> None:
    """One row a mode: the rounds' differences, their mean and its interval, and all of it in words."""
    looks, limits = style.looks(suite), limits_of(suite, exposed)
    axes.set_xlim(limits)
    axes.axvline(0, color=style.BLACK, linewidth=1)
    for y, (role, (each, mean, low, high)) in enumerate(exposed.items()):
        look = looks[role]
        heights = [y + 0.22 + 0.06 * ((i % 3) - 1) for i in range(len(each))]
        axes.plot(each, heights, look.marker, color=look.colour, markersize=4.5, alpha=0.9, markeredgecolor="white",
                  markeredgewidth=0.5)  # fmt: skip
        if low is not None:
            style.draw_interval(axes, low, high, y + 0.42, limits, look.colour)
        axes.plot(mean, y + 0.42, "|", color="black", markersize=10, markeredgewidth=2)
        axes.text(0.985, y - 0.08, exposed_words(suite, role, mean, low, high), va="center", ha="right",
                  size=style.SMALL, transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_yticks([y + 0.2 for y in range(len(exposed))], list(exposed))
    axes.set_ylim(len(exposed) - 0.3, -0.35)
    axes.tick_params(axis="y", length=0)
    axes.set_title("exposed communication", loc="left", size=style.TEXT)
    style.vertical_grid(axes)


def exposed_words(suite, role: str, mean: float, low, high) -> str:
    """The exposed communication with its interval and its share of the step."""
    share = 100 * mean / statistics.fmean(step_ms(record) for record in suite.roles[role])
    interval = "" if low is None else f" [{style.number(low)} to {style.number(high)}]"
    return f"{style.number(mean)} ms{interval}, {style.number(round(share))} % of the step"


def limits_of(suite, exposed: dict) -> tuple[float, float]:
    """The axis of milliseconds: all bars and all rounds are on it, and a little below 0 for intervals."""
    longest = max(step_ms(record) for records in suite.roles.values() for record in records)
    rounds = [x for each, *_ in exposed.values() for x in each]
    lows = [low for _, _, low, _ in exposed.values() if low is not None]
    return min(0.0, *rounds, max(-0.15 * longest, min(lows, default=0.0))), 1.15 * longest


def exposed_comm(suite, role: str) -> tuple:
    """([ms of each round], mean, low, high) of a role's exposed communication; low and high None with one round."""
    pairs = zip(suite.roles[role], suite.roles[f"{role} {BARE}"], strict=True)
    each = [1e3 * formulas.exposed_comm_s(step_ms(record) / 1e3, step_ms(bare) / 1e3) for record, bare in pairs]
    if len(each) < 2:
        return each, each[0], None, None
    return each, *formulas.mean_interval(each, stats.t_quantile(len(each) - 1, 0.95))


def slowest(record: dict) -> dict:
    """The rank that took longest for all its timed steps."""
    return max(record["samples"], key=lambda part: sum(part["step_time_s"]))


def step_ms(record: dict) -> float:
    """Mean milliseconds of the slowest rank's steps: global batch over throughput."""
    return 1e3 * statistics.fmean(slowest(record)["step_time_s"])


def phases_ms(records: list[dict]) -> dict[str, float]:
    """Mean milliseconds of each phase over the rounds; what no phase accounts for is "other"."""
    rounds = [phases_of(slowest(record)) for record in records]
    return {name: 1e3 * statistics.fmean(phases[name] for phases in rounds) for name in PHASES}


def phases_of(part: dict) -> dict[str, float]:
    """Mean seconds of each phase in one rank's steps; they add up to the step.

    The wait for data is cut to what the timed phases leave of the step. On a CPU it always fits; on a GPU the host
    waits while the device still computes, and the same time would be in two phases.

    >>> part = {"step_time_s": [1.0, 2.0], "data_wait_s": [0.1, 0.1], "phase_time_s": {"forward": [0.3, 0.5]}}
    >>> {name: round(value, 3) for name, value in phases_of(part).items() if value}
    {'data wait': 0.1, 'forward': 0.4, 'other': 1.0}
    >>> {name: round(value, 3) for name, value in phases_of(part | {"data_wait_s": [1.4, 1.4]}).items() if value}
    {'data wait': 1.1, 'forward': 0.4}
    """
    timed = part.get("phase_time_s", {})
    found = {name: statistics.fmean(timed.get(name) or [0.0]) for name in PHASES}
    left = max(0.0, statistics.fmean(part["step_time_s"]) - sum(found.values()))
    found["data wait"] = min(left, statistics.fmean(part["data_wait_s"]))
    found["other"] = left - found["data wait"]
    return found
