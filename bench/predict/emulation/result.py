"""What an emulation says: its step and throughput beside one device's, in a table and in words."""

import statistics

from bench import formulas
from bench.analysis import style
from bench.analysis.tables import Grid
from bench.launch.cluster.plan import rate_words
from bench.predict.emulation.record import EmulationRecord

CONFIDENCE = 0.95
CROWDED = 0.7  # of the CPU; above it waits end late


def grid(record: EmulationRecord) -> Grid:
    """One row: the emulation. Seconds and rates are those that it stands for."""
    profile, steps = record.plan.profile, record.steps_s
    middle, low, high = formulas.median_interval(steps, CONFIDENCE)
    interval = "" if low is None else f" [{style.number(1e3 * low)}–{style.number(1e3 * high)}]"
    one = profile.units / profile.mean_step_s
    efficiency = formulas.scaling_efficiency(record.throughput, one, record.num_devices)
    head = [("mode", False), ("nodes", True), ("step ms, median [95 %]", True), ("mean", True), ("n", True),
            (f"{profile.unit}/s", True), ("efficiency", True)]  # fmt: skip
    row = [record.program, str(record.num_devices), f"{style.number(1e3 * middle)}{interval}",
           style.number(1e3 * statistics.fmean(steps)), str(len(steps)), style.number(record.throughput),
           f"{100 * efficiency:.0f} %"]  # fmt: skip
    return Grid(head, [row], f"{record.kind}: no measurement of a training")


def standing(record: EmulationRecord) -> list[str]:
    """What it rests on."""
    plan = record.plan
    profile = plan.profile
    rate = "without a limit" if plan.rate_mbit is None else f"of {rate_words(plan.rate_mbit)}"
    delay = f", {plan.latency_ms:g} ms one way" if plan.latency_ms else ""
    slowed = (f"; computation and links are {plan.dilate:g} times slower, and figures divided back" if plan.dilate > 1
              else "")  # fmt: skip
    return [
        f"{record.kind}: {profile.what}",
        f"computation: waits as long as in {profile.source} ({profile.machine})",
        f"links: {rate}{delay}, between {record.network or 'processes of one machine'}{slowed}",
    ]


def answer(record: EmulationRecord) -> list[str]:
    """Where the step goes, and what to doubt."""
    phases = ", ".join(f"{name} {style.number(1e3 * seconds)} ms" for name, seconds in record.phases_s.items())
    lines = [f"the rank that was slowest: {phases}"]
    if record.cpu_share > CROWDED:
        lines.append(f"warning: {100 * record.cpu_share:.0f} % of this machine's CPU was in use, so waits ended late: "
                     "take fewer nodes, a lower RATE or a larger DILATE")  # fmt: skip
    return lines
