"""Step breakdown: each program's step, its phases, the communication that is not hidden, and a step's timeline.

Exposed communication is a mode's step time minus that of the same run without any exchange (``no_sync``), paired by
round. It includes DDP's broadcast of buffers and, on a CPU, the cores that communication takes from computation.
"""

import statistics

from bench import formulas
from bench.analysis import lanes, memory_figure, stats, style, words
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.lanes import PHASES, SHARDED, Panel
from bench.analysis.suite import Program, Suite
from bench.config.modes import MODES
from bench.formulas import union
from bench.record.definition import Sample
from bench.record.view import Record
from bench.studies.breakdown.study import RULES

COPIES = ("scatter", "replicate", "gather")  # phases of DataParallel other than the forward pass
ROW = 0.42  # inches
MOST_RANKS = 4  # drawn per mode; more would not be legible
COMPUTE_KEY = (
    "compute: operators, one row per thread (CPU), or kernels on the model's stream, one row per device (GPU)."
)
COMMUNICATION_KEY = (
    "comm.: number and MiB of a bucket (DDP: from its launch, so it includes waiting for other ranks) or of a fused "
    "reduction (Horovod); at the start of the step rank 0's buffers, at its end the weights (zero1)."
)
SHARDED_KEY = "gather: a block's weights from all ranks (fsdp). scatter: its gradients to all ranks (fsdp)."
OVERLAP_KEY = (
    "Communication that overlaps with computation may still slow it down: compare with the run without exchange "
    "(no_sync)."
)


def compare(suite: Suite) -> Result:
    return compare_suite(suite, RULES, all_pairs=False)


def answer(result: Result) -> list[str]:
    """Each program's step and, if measured, its exposed communication or DataParallel's copies."""
    suite, profiled, lines = result.suite, latest(result.suite), []
    for program in suite.programs.values():
        if not program.config.sync:
            continue
        line = f"{program.label}: {style.number(statistics.fmean(map(step_ms, program.records)))} ms per step"
        if bare := bare_of(suite, program):
            line += f", exposed communication {exposed_words(program, *exposed_comm(program, bare)[1:])}"
        parts = parts_ms(profiled[program.label]) if program.label in profiled else {}
        if parts:
            line += f"; {parts_words(parts)} (of one step under a profiler, which slows it)"
        lines.append(line)
    return lines


def bare_of(suite: Suite, program: Program) -> Program | None:
    """The same program without its gradient exchange."""
    return next((p for p in suite.programs.values() if p.overrides(program) == {"sync": False}), None)


def exposed_comm(program: Program, bare: Program) -> tuple:
    """([ms of each round], mean, low, high) of the exposed communication; low and high None for a preview."""
    pairs = zip(program.records, bare.records, strict=True)
    each = [1e3 * formulas.exposed_comm_s(step_ms(record) / 1e3, step_ms(other) / 1e3) for record, other in pairs]
    if len(each) < stats.FEWEST_ROUNDS:
        return each, statistics.fmean(each), None, None
    return each, *formulas.mean_interval(each, stats.t_quantile(len(each) - 1, 0.95))


def exposed_words(program: Program, mean: float, low: float | None, high: float | None) -> str:
    """The exposed communication with its interval and its share of the step; "not shown" if it is noise."""
    if words.too_wide(mean, low, high):
        return words.measured(mean, low, high)
    if low is None:
        return f"{style.number(mean)} ms (preview: no interval)"
    share = 100 * mean / statistics.fmean(step_ms(record) for record in program.records)
    interval = f"[{style.number(low)} to {style.number(high)}]"
    return f"{style.number(mean)} ms {interval}, {style.number(round(share))} % of the step"


def slowest(record: Record) -> Sample:
    return max(record.samples, key=lambda part: sum(part.step_time_s))


def step_ms(record: Record) -> float:
    """The mean step of the slowest rank."""
    return 1e3 * statistics.fmean(slowest(record).step_time_s)


def phases_ms(records: list[Record]) -> dict[str, float]:
    """Mean milliseconds of each phase over the rounds; the remainder is "other"."""
    parts = [slowest(record) for record in records]
    rounds = [phases_of(part.step_time_s, part.data_wait_s, part.phase_time_s) for part in parts]
    return {name: 1e3 * statistics.fmean(phases[name] for phases in rounds) for name in PHASES}


def phases_of(step_time_s: list[float], data_wait_s: list[float], phase_time_s: dict) -> dict[str, float]:
    """Mean seconds of each phase in one rank's steps; they add up to the step.

    The wait for data is limited to the rest of the step. On a CPU it always fits; on a GPU the host waits while the
    device still computes, so the same time would count twice.

    >>> found = phases_of([1.0, 2.0], [1.4, 1.4], {"forward": [0.3, 0.5]})
    >>> {name: round(value, 3) for name, value in found.items() if value}
    {'data wait': 1.1, 'forward': 0.4}
    """
    found = {name: statistics.fmean(phase_time_s.get(name) or [0.0]) for name in PHASES}
    left = max(0.0, statistics.fmean(step_time_s) - sum(found.values()))
    found["data wait"] = min(left, statistics.fmean(data_wait_s))
    found["other"] = left - found["data wait"]
    return found


def latest(suite: Suite) -> dict[str, Record]:
    """The last profiled run of each program that holds a timeline."""
    profiled = sorted(suite.extra, key=lambda record: record.started_at)
    return {record.program: record for record in profiled if timelines(record)}


def timelines(record: Record) -> dict[int, dict]:
    """Rank -> its timeline, for the ranks that have one."""
    return {part.rank: part.timeline for part in record.samples if part.timeline}


def parts_ms(record: Record) -> dict[str, float]:
    """DataParallel's phases other than the forward pass, in ms of the profiled step; empty for other modes."""
    found = {}
    for timeline in timelines(record).values():
        for span in timeline["spans"]:
            if span["lane"] == "dp" and span["name"] != "forward":
                found[span["name"]] = found.get(span["name"], 0.0) + 1000 * (span["end_s"] - span["start_s"])
    return found


def parts_words(parts: dict[str, float]) -> str:
    """
    >>> parts_words({"scatter": 0.5, "gather": 12.34})
    'scatter 0.5 ms, replicate not observed, gather 12.3 ms'
    """
    return ", ".join(
        f"{name} {style.number(parts[name])} ms" if name in parts else f"{name} not observed" for name in COPIES
    )


# --- the picture of phases ------------------------------------------------------------------------------------------


@style.styled
def draw_step(result):
    """The step of the slowest rank, mean over rounds, as a stacked bar; below it the exposed communication."""
    suite = result.suite
    bare = {label: bare_of(suite, program) for label, program in suite.programs.items()}
    exposed = {label: exposed_comm(suite.programs[label], other) for label, other in bare.items() if other}
    times = "host clock. "
    if suite.device == "cuda":
        times = "CUDA events (data wait: host clock, at most the rest of the step). "
    more = [f"Steps of the slowest rank, mean over rounds; {times}`no_sync`: the same run without any exchange."]
    if exposed:
        rounds = " (dot: one round; bar: 95 % CI)." if suite.n >= stats.FEWEST_ROUNDS else " (a preview: no interval)."
        more.append("Exposed communication: step time minus step time with no_sync, paired by round. It includes the "
                    "cost of buffers and of CPU cores used for communication" + rounds)  # fmt: skip
    heights = [ROW * len(suite.programs) + 0.95] + ([0.62 * len(exposed) + 0.65] if exposed else [])
    figure, panels = style.panels(result, "Step time by phase", heights, 0, more, sharex=bool(exposed))
    draw_phases(panels[0], suite)
    if exposed:
        draw_exposed(panels[1], suite, exposed)
    panels[-1].set_xlabel("milliseconds per step")
    return figure


def draw_phases(axes, suite) -> None:
    for y, program in enumerate(suite.programs.values()):
        phases, left = phases_ms(program.records), 0.0
        for name, look in PHASES.items():
            axes.barh(y, phases[name], 0.66, left, facecolor=look.colour, edgecolor="black", linewidth=0.7,
                      hatch=look.hatch, label=name if y == 0 else None)  # fmt: skip
            left += phases[name]
        axes.annotate(style.number(statistics.fmean(map(step_ms, program.records))), (left, y), (4, 0),
                      textcoords="offset points", va="center", size=style.SMALL)  # fmt: skip
    style.name_rows(axes, suite.programs)
    axes.tick_params(axis="x", labelbottom=True)
    axes.margins(x=0.1)
    style.finish(axes, legend=3)


def draw_exposed(axes, suite, exposed: dict) -> None:
    longest = max(step_ms(record) for program in suite.programs.values() for record in program.records)
    rounds = [x for each, *_ in exposed.values() for x in each]
    lows = [low for _, _, low, _ in exposed.values() if low is not None]
    limits = min(0.0, *rounds, max(-0.15 * longest, min(lows, default=0.0))), 1.15 * longest
    axes.set_xlim(limits)
    axes.axvline(0, color=style.BLACK, linewidth=1)
    looks = style.looks(suite)
    for y, (label, (each, mean, low, high)) in enumerate(exposed.items()):
        style.draw_dots(axes, each, y + 0.22, 0.06, looks[label], markersize=4.5, markeredgewidth=0.5)
        if low is not None:
            style.draw_interval(axes, low, high, y + 0.42, limits, looks[label].colour)
        style.mark(axes, mean, y + 0.42, 10)
        axes.text(0.985, y - 0.08, exposed_words(suite.programs[label], mean, low, high), va="center", ha="right",
                  size=style.SMALL, transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_yticks([y + 0.2 for y in range(len(exposed))], list(exposed))
    axes.set_ylim(len(exposed) - 0.3, -0.35)
    axes.tick_params(axis="y", length=0)
    axes.set_title("exposed communication", loc="left", size=style.TEXT)
    style.finish(axes)


# --- the picture of one step ----------------------------------------------------------------------------------------


@style.styled
def draw_timeline(result):
    """A panel per profiled program: by rank its phases, computation and communication. None without a timeline."""
    records, more, panels = latest(result.suite), [], []
    if not records:
        return None
    for label, record in records.items():
        found = timelines(record)
        drawn = {f"rank {rank}": lanes.lanes_of(found[rank]["spans"]) for rank in list(found)[:MOST_RANKS]}
        end_s = max(timeline["step_s"] for timeline in found.values())
        panels.append(Panel(f"{label}: {timeline_words(record)}", drawn, end_s))
        if len(found) > MOST_RANKS:
            more.append(f"{label}: the first {MOST_RANKS} of {len(found)} ranks are drawn.")
        missing = [lane for lane in ("phase", "compute") if not any(lane in each for each in drawn.values())]
        if missing:
            more.append(f"{label}: {' and '.join(missing)} could not be recorded.")
    title = "Timeline of one step of each mode" if len(panels) > 1 else "Timeline of one step"
    return lanes.draw(result.suite, title, panels, "milliseconds from the start of the step on that rank",
                      result.certificate, (*timeline_key(panels), *more), "n = 1 step per mode")  # fmt: skip


def timeline_key(panels: list[Panel]) -> list[str]:
    """What the rows of the panels mean."""
    drawn = {lane for panel in panels for group in panel.groups.values() for lane in group}
    said = ["One step under a profiler, which slows it down."]
    said += ["Each panel has its own scale."] if len(panels) > 1 else []
    said += [COMPUTE_KEY]
    said += [COMMUNICATION_KEY] if "communication" in drawn else []
    said += [SHARDED_KEY] if drawn.intersection(SHARDED) else []
    return [" ".join(said)] + ([OVERLAP_KEY] if drawn.intersection(("communication", *SHARDED)) else [])


def timeline_words(record: Record) -> str:
    found, knobs = timelines(record), MODES[record.config.mode].knobs
    lengths = [1000 * timeline["step_s"] for timeline in found.values()]
    text = f"{max(lengths):.{0 if max(lengths) >= 100 else 1}f} ms"
    shares = {rank: hidden_share(timeline["spans"]) for rank, timeline in found.items()}
    known = [f"{100 * share:.0f} % (rank {rank})" for rank, share in shares.items() if share is not None]
    if known:
        if "local_steps" in knobs:
            text += f"; the step that averages the weights (one of {record.config.local_steps})"
        text += "".join(f"; {sent}" for sent in sharded_words(next(iter(found.values()))["spans"]))
        each = ", ".join(known[:MOST_RANKS])
        text += f"; share of communication that overlaps with computation: {each}"
        return text + (" (its real cost: compare with no_sync)" if "sync" in knobs else "")
    if parts := parts_ms(record):
        share = 100 * sum(parts.values()) / sum(lengths)
        text += f"; scatter, replicate and gather take {share:.2g} %: {parts_words(parts)}"
        return text + "; gradients are added up inside backward"
    return text + ("; no communication" if len(found) == 1 else "; no communication was observed")


def sharded_words(spans: list[dict]) -> list[str]:
    """Weights that a rank receives and gradients that it sends, under sharding: ['gather: 3 MiB in total']."""
    sent = {}
    for span in spans:
        kind = span["name"].partition(" ")[0]
        if span["lane"] == "communication" and kind in (*SHARDED, "weights"):
            sent[kind] = sent.get(kind, 0) + span["bytes"]
    return [f"{kind}: {size / 2**20:.3g} MiB in total" for kind, size in sent.items()]


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


FIGURES = {"breakdown": {"step": draw_step, "timeline": draw_timeline, "memory": memory_figure.draw}}
