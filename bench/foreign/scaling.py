"""One script on several numbers of devices: its speedup, and what takes the rest of the time.

Records belong to one script if they have the same name and kind of device. Its text and arguments should be equal too,
except values that follow from the number of devices; the table shows where they differ.
"""

import math
import shlex
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from bench import formulas
from bench.analysis import stats
from bench.analysis.suite import group_by
from bench.analysis.tables import Grid, print_captioned, print_lines
from bench.analysis.words import with_span
from bench.foreign.record import ForeignRecord
from bench.foreign.result import WATCHED
from bench.measure.environment import cores_in_words
from bench.record import describe
from bench.record.disturbance import LABEL, in_words, worst

WEAK, STRONG, UNKNOWN = "weak", "strong", "unknown"
CONFIDENCE = 0.95
FASTER = 1.05  # times linear scaling: above this, something else than the devices differs


@dataclass(frozen=True)
class Arm:
    """The runs on one number of devices, with one engine and number of threads per process."""

    records: list[ForeignRecord]

    @property
    def first(self) -> ForeignRecord:
        return self.records[0]

    @property
    def devices(self) -> int:
        return self.first.num_devices

    @property
    def threads(self) -> int:
        return self.first.samples[0].threads

    @property
    def disturbance(self) -> str:
        return in_words(worst(self.records))

    def mean(self, value: Callable[[ForeignRecord], float]) -> float:
        return statistics.fmean(map(value, self.records))


@dataclass(frozen=True)
class Scaling:
    """kind: WEAK (same batch per device), STRONG (same global batch) or UNKNOWN (batches not known)."""

    kind: str
    records: list[ForeignRecord]

    @cached_property
    def arms(self) -> list[Arm]:
        found = group_by(self.records, lambda run: (run.num_devices, run["engine"], run.samples[0].threads))
        return [Arm(found[key]) for key in sorted(found)]

    @cached_property
    def base(self) -> Arm:
        """The arm on the fewest devices; of several, the fastest."""
        fewest = [arm for arm in self.arms if arm.devices == self.arms[0].devices]
        return max(fewest, key=lambda arm: statistics.geometric_mean(self.rates(arm)))

    @property
    def others(self) -> list[Arm]:
        return [arm for arm in self.arms if arm is not self.base]

    def rates(self, arm: Arm) -> list[float]:
        """Examples per second of each run, or steps times devices per second where the batch is not known."""
        return [r.steps_per_s * (r.num_devices if self.kind == UNKNOWN else r.global_batch) for r in arm.records]

    def speedup(self, arm: Arm) -> tuple[float, float | None, float | None]:
        """Relative to the base, with its 95 % CI if both arms have enough runs."""
        base, rates = self.rates(self.base), self.rates(arm)
        if min(len(base), len(rates)) >= stats.FEWEST_ROUNDS:
            return formulas.unpaired_log_ratio_interval(base, rates, CONFIDENCE)
        return statistics.geometric_mean(rates) / statistics.geometric_mean(base), None, None

    def efficiency(self, arm: Arm) -> tuple[float, float | None, float | None]:
        """Speedup over the ratio of devices, in percent."""
        times = arm.devices / self.base.devices
        speedup = self.speedup(arm)
        return tuple(None if x is None else 100 * formulas.scaling_efficiency(x, 1.0, times) for x in speedup)

    def lost(self, arm: Arm) -> tuple[float, dict[str, float]]:
        """Seconds by which an arm's step is longer than linear scaling needs, and their parts, largest first.

        Under strong scaling a step, and the wait in it, should shrink as devices are added.
        """
        share = self.base.devices / arm.devices if self.kind == STRONG else 1.0

        def more(value: Callable[[ForeignRecord], float]) -> float:
            return arm.mean(value) - share * self.base.mean(value)

        overlaps = ", which may overlap with computation" if arm.first.on_gpu else ""
        parts = {f"wait for data{overlaps}": more(wait_s), "imbalance between ranks": more(imbalance_s)}
        rest = "rest of the step (gradient exchange and slower computation, not measured separately)"
        parts[rest] = more(step_s) - sum(parts.values())
        return more(step_s), dict(sorted(parts.items(), key=lambda part: -part[1]))

    # --- Sentences ----------------------------------------------------------------------------------------------------

    def name(self, arm: Arm) -> str:
        twins = [other for other in self.arms if other.devices == arm.devices]
        more = [arm.first["engine"]] * (len({each.first["engine"] for each in twins}) > 1)
        more += [f"{arm.threads} threads"] * (len({each.threads for each in twins}) > 1)
        return in_devices(arm.devices) + (f" ({', '.join(more)})" if more else "")

    @property
    def caption(self) -> str:
        first = self.records[0]
        unit = {
            WEAK: f"weak scaling: {(first.global_batch or 0) / first.num_devices:g} examples per device and step",
            STRONG: f"strong scaling: {first.global_batch} examples per step over all devices",
            UNKNOWN: "steps/s; per-device batch not known: the speedup assumes it is the same",
        }
        counts = [str(count) for count in sorted({arm.devices for arm in self.arms})]
        found = [f"{first.name} on {', '.join(counts[:-1])} and {counts[-1]} devices, {unit[self.kind]}"]
        if not all(same_text(first, each) for each in self.records):
            found.append("the script's text differs between the runs, and the speedup includes that change")
        if not all(same_arguments(first, each) for each in self.records):
            given = dict.fromkeys(f"{shlex.join(arguments(each)) or 'none'} ({in_devices(each.num_devices)})"
                                  for each in self.records)  # fmt: skip
            found.append(f"the script's arguments differ: {', '.join(given)}")
        return "; ".join(found)

    def lines(self) -> list[str]:
        found = []
        emulated = [arm for arm in self.arms if not arm.first.on_gpu and arm.devices > 1]
        if emulated:
            each = dict.fromkeys(f"{arm.first.world_size} CPU processes emulate {arm.devices} devices"
                                 for arm in emulated)  # fmt: skip
            cores = cores_in_words(emulated[0].first.machine.get("usable_cores"))
            found.append(f"no GPU is used: {', '.join(each)}, and share {cores}")
            if len({arm.threads for arm in self.arms}) > 1:
                threads = ", ".join(f"{arm.threads} on {in_devices(arm.devices)}" for arm in self.arms)
                found.append(f"threads per process: {threads}: these devices are not equal; set OMP_NUM_THREADS=1 "
                             "for every command")  # fmt: skip
        found += [f"{self.name(arm)}: {LABEL}: {arm.disturbance}" for arm in self.arms if arm.disturbance]
        shares = {self.name(arm): arm.mean(lambda record: record.watch_share) for arm in self.arms}
        watched = [f"{100 * share:.0f} % of the steps on {name}" for name, share in shares.items() if share > WATCHED]
        if watched:
            found.append(f"the Watch took {', '.join(watched)}: WATCH=0 times without one")
        found += [self.interval_note(), *map(self.lost_note, self.others)]
        return [f"{self.records[0].name}: {line}" for line in found]

    def interval_note(self) -> str:
        runs = [len(arm.records) for arm in self.arms]
        if max(runs) == 1:
            return "one run each, no confidence interval"
        least = f"{stats.FEWEST_ROUNDS} runs on each number of devices"
        if all(self.speedup(arm)[1] is None for arm in self.others):
            return f"no confidence interval, which needs {least}"
        few = "" if min(runs) >= stats.FEWEST_ROUNDS else f"; they need {least}"
        return f"95 % CI by Welch's t on log throughput, because the runs share no rounds{few}"

    def lost_note(self, arm: Arm) -> str:
        more, parts = self.lost(arm)
        took, linear = (f"{1e3 * seconds:.2f} ms" for seconds in (arm.mean(step_s), arm.mean(step_s) - more))
        marked = f", {LABEL}" if arm.disturbance or self.base.disturbance else ""
        head = f"{self.name(arm)}{marked}: a step takes {took}"
        if more <= 0:
            beyond = -more > (FASTER - 1) * arm.mean(step_s)
            why = ": the number of devices does not explain that" if beyond else ""
            return f"{head}, no longer than linear scaling needs ({linear}){why}"
        listed = "; ".join(f"{part} {1e3 * seconds:+.2f} ms" for part, seconds in parts.items())
        return f"{head}, linear scaling needs {linear}. Difference, largest part first: {listed}"


def grid(found: Scaling) -> Grid:
    unknown = found.kind == UNKNOWN
    head = [("devices", True), ("engine", False), ("processes\n× threads", True),
            ("steps/s" if unknown else "examples/s", True), ("step\nms", True), ("speedup\n[95 %]", True),
            ("efficiency\n[95 %]", True), ("waits for\ndata", True), ("imbalance\nof ranks", True),
            ("runs", True)]  # fmt: skip
    rows = [
        [
            str(arm.devices),
            arm.first["engine"] + (f", {LABEL}" if arm.disturbance else ""),
            f"{arm.first.world_size} × {arm.threads}",
            f"{statistics.geometric_mean(r.steps_per_s if unknown else r.throughput for r in arm.records):.1f}",
            f"{1e3 * arm.mean(step_s):.2f}",
            "base" if arm is found.base else f"×{with_span(*found.speedup(arm), '.2f')}",
            "100 %" if arm is found.base else f"{with_span(*found.efficiency(arm), '.0f')} %",
            f"{100 * arm.mean(lambda record: record.wait_share):.0f} %",
            f"{100 * arm.mean(lambda record: imbalance_s(record) / step_s(record)):.0f} %",
            str(len(arm.records)),
        ]
        for arm in found.arms
    ]
    grey = frozenset(place for place, arm in enumerate(found.arms) if arm.disturbance)
    return Grid(head, rows, found.caption, grey)


def show(console, found: Scaling) -> None:
    print_captioned(console, grid(found))
    print_lines(console, found.lines())


# --- Which records belong together ------------------------------------------------------------------------------------


def find(a: list[ForeignRecord], b: list[ForeignRecord] | None = None) -> list[Scaling]:
    """All scripts among the records that ran on several numbers of devices.

    b: the other side of a comparison; each result then has records of both. Records with the same text and arguments
    have priority. Without such a scaling, a script's text may differ, and between two sides its arguments.
    """
    rules = [(same_text, same_arguments), (same_arguments,), *([()] if b is not None else [])]
    sides = [{record.run_id for record in side} for side in (a, b or a)]
    records = sorted([*a, *(b or [])], key=lambda record: (record.num_devices, record.started_at))
    found = []
    for family in group_equal(records, same_place):
        for rule in rules:
            groups = group_equal(family, lambda x, y, rule=rule: all(equal(x, y) for equal in rule))
            scalings = [each for group in groups for each in scalings_of(group)]
            spanning = [each for each in scalings if all(side & {r.run_id for r in each.records} for side in sides)]
            if spanning:
                found += spanning
                break
    return found


def scalings_of(records: list[ForeignRecord]) -> list[Scaling]:
    batches = {
        WEAK: lambda record: record.global_batch and record.global_batch / record.num_devices,
        STRONG: lambda record: record.global_batch,
    }

    def scales(group: list[ForeignRecord]) -> bool:
        return len({record.num_devices for record in group}) > 1

    found = [
        Scaling(kind, same)
        for kind, batch in batches.items()
        for size in dict.fromkeys(filter(None, map(batch, records)))
        if scales(same := [record for record in records if batch(record) == size])
    ]
    if found or all(record.global_batch for record in records):
        return found
    known = set(filter(None, map(batches[WEAK], records)))
    return [Scaling(UNKNOWN, records)] if len(known) < 2 and scales(records) else []


def group_equal(records: list[ForeignRecord], equal: Callable) -> list[list[ForeignRecord]]:
    groups = []
    for record in records:
        group = next((group for group in groups if equal(group[0], record)), None)
        groups.append([record]) if group is None else group.append(record)
    return groups


def same_place(one: ForeignRecord, other: ForeignRecord) -> bool:
    keys = []
    for record in (one, other):
        names = set(describe.used_gpus(record)) or {record.machine.get("cpu_model")}
        keys.append((record.name, record.topology["device"], names, record.network))
    return keys[0] == keys[1]


def same_text(one: ForeignRecord, other: ForeignRecord) -> bool:
    return one["script_sha256"] == other["script_sha256"]


def same_arguments(one: ForeignRecord, other: ForeignRecord) -> bool:
    """Except for values that follow from the number of devices."""
    words = [[part for word in arguments(record) for part in word.split("=")] for record in (one, other)]
    return len(words[0]) == len(words[1]) and all(
        follows(x, y, one.num_devices, other.num_devices) for x, y in zip(*words, strict=True)
    )


def arguments(record: ForeignRecord) -> list[str]:
    try:
        words = shlex.split(record["command"])
    except ValueError:  # edited by hand
        words = record["command"].split()
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    modules = [place + 1 for place, word in enumerate(words) if word in ("-m", "--module")]
    return words[(scripts or modules[-1:] or [0])[0] + 1 :]


def follows(x: str, y: str, a: int, b: int) -> bool:
    """Whether two values of an argument are equal, or differ as a and b devices do: proportional, inversely
    proportional, or lists of a and b entries.

    >>> follows("1", "4", 1, 4), follows("64", "16", 1, 4), follows("0", "0,1,2,3", 1, 4), follows("64", "32", 1, 4)
    (True, True, True, False)
    """
    if x == y or (len(x.split(",")), len(y.split(","))) == (a, b) != (1, 1):
        return True
    try:
        first, second = float(x), float(y)
    except ValueError:
        return False
    return math.isclose(first * b, second * a) or math.isclose(first * a, second * b)


# --- Values of one record ---------------------------------------------------------------------------------------------


def step_s(record: ForeignRecord) -> float:
    return 1 / record.steps_per_s


def wait_s(record: ForeignRecord) -> float:
    """Mean wait for a batch of the rank that waits longest, at most a step."""
    return min(step_s(record), max(statistics.fmean(part.data_wait_s) for part in record.samples))


def imbalance_s(record: ForeignRecord) -> float:
    return formulas.rank_imbalance_s([part.step_time_s for part in record.samples])


def in_devices(count: int) -> str:
    return f"{count} device{'s' * (count > 1)}"
