"""What "disturbed" means, for every verdict, table, picture and page.

A run is disturbed if a metric of its summary is above its threshold. A record contains the thresholds that applied
(``summary.disturbed_above``), so later changes do not alter the verdict on old records. A suite with a disturbed run
keeps its ratios and intervals, but gets no verdict and no advice.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.record.view import Record


@dataclass(frozen=True)
class Threshold:
    above: float
    words: str


THRESHOLDS = {
    "others_cpu_share": Threshold(0.10, "other processes took {:.0%} of the CPU"),  # an idle desktop: 1 to 3 %
    "steal_share": Threshold(0.05, "CPU steal by the host of this virtual machine was {:.0%}"),
    "foreign_gpu_processes": Threshold(0, "{:.0f} other processes used a GPU"),
    "gpu_slowed_share": Threshold(0.10, "a GPU clock was throttled in {:.0%} of the samples"),
}
LABEL = "disturbed"


def thresholds() -> dict[str, float]:
    return {name: each.above for name, each in THRESHOLDS.items()}


def disturbances_of(record: Record) -> dict[str, float]:
    return above(record["summary"])


def above(summary: dict) -> dict[str, float]:
    """Metric -> value of those above their threshold, by the summary's own thresholds."""
    limits = thresholds() | (summary.get("disturbed_above") or {})
    return {name: value for name in THRESHOLDS if (value := summary.get(name) or 0.0) > limits[name]}


def observed_of(record: Record) -> dict:
    """The input of the detectors, with "disturbed": times of a disturbed run are not evidence of a mistake."""
    return record.observed | {"disturbed": in_words(above(record.data.get("summary") or {}))}


def in_words(found: dict[str, float]) -> str:
    """
    >>> in_words({"others_cpu_share": 0.41, "foreign_gpu_processes": 2})
    'other processes took 41 % of the CPU and 2 other processes used a GPU'
    """
    return " and ".join(THRESHOLDS[name].words.format(value).replace("%", " %") for name, value in found.items())


def worst(records: Iterable[Record]) -> dict[str, float]:
    """Metric -> its largest value above a threshold in any of these records."""
    found = {}
    for record in records:
        for name, value in disturbances_of(record).items():
            found[name] = max(value, found.get(name, 0.0))
    return found


def disturbed(records: Iterable[Record]) -> list[str]:
    programs = {}
    for record in records:
        programs.setdefault(record.program, []).append(record)
    found = {name: in_words(worst(same)) for name, same in programs.items()}
    return [f"{name} was disturbed: {words} during its timed steps" for name, words in found.items() if words]


def undisturbed(records: list[Record]) -> tuple[bool, str]:
    """Whether records may be shown as a reference; and a sentence with the number of disturbed runs."""
    known = sum("others_cpu_share" in record["summary"] for record in records)
    if not known:
        return True, "It was not measured whether other processes disturbed these runs."
    unknown = f"; for {len(records) - known} runs this was not measured" if known < len(records) else ""
    count = sum(bool(disturbances_of(record)) for record in records)
    if count:
        return False, f"{count} of {len(records)} runs were disturbed, at worst: {in_words(worst(records))}{unknown}."
    return True, f"None of {known} runs was disturbed by other processes{unknown}."
