"""The records that belong to a forecast: measured or emulated, of the same work, on the same devices, over the same
link; and the reason why another record is left out."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import formulas
from bench.cluster.plan import LABEL, limit_of, rate_words
from bench.config.fields import in_words
from bench.config.modes import MODES
from bench.config.options import FIELDS, RunConfig
from bench.errors import UserError
from bench.predict.emulation import record as emulations
from bench.predict.emulation.record import EmulationRecord
from bench.predict.step import result
from bench.predict.step.engines import CYCLE_MS
from bench.predict.step.fit import Fit, Point
from bench.predict.step.link import Link
from bench.predict.step.profile import SAME_STEP, Profile
from bench.record import packed
from bench.record.describe import of_environment, used_gpus
from bench.record.disturbance import disturbances_of
from bench.record.read import find_runs, load
from bench.record.view import Record

FASTER = 1.05  # efficiency that no exchange can reach
NEAR_MS = 0.1  # of latency: the links of namespaces have about this much
DEFAULTS = {"cycle_time_ms": CYCLE_MS}  # of options whose default is the backend's own


@dataclass(frozen=True)
class Asked:
    """The inputs of a forecast. record: that of one device. configs: by mode. fits: of the modes with measured
    points."""

    record: Record
    profile: Profile
    link: Link
    configs: dict[str, RunConfig]
    fits: dict[str, Fit] = field(default_factory=dict)

    def forecast(self, mode: str, ranks: int) -> result.Forecast:
        return result.forecast(self.profile, self.configs[mode], ranks, self.link, self.fits.get(mode))

    def fitted(self, measured: list[Record]) -> "Asked":
        """The same for the modes that were measured, fitted to them."""
        points = {}
        for (mode, ranks), same in by_place(measured).items():
            alone = Point(1, (self.profile.mean_step_s,))
            points.setdefault(mode, [alone]).append(Point(ranks, tuple(map(self.step_s, same))))
        fits = {mode: Fit(self.profile, config, self.link, points[mode])
                for mode, config in self.configs.items() if mode in points}  # fmt: skip
        return dataclasses.replace(self, configs={mode: self.configs[mode] for mode in fits}, fits=fits)

    def step_s(self, record: Record) -> float:
        return record.num_devices * self.profile.units / record.throughput

    def provenance_lines(self) -> list[str]:
        given = [
            f"{mode} with {in_words(FIELDS[name], getattr(config, name))}"
            for mode, config in self.configs.items()
            for name in MODES[mode].knobs
            if getattr(config, name) != FIELDS[name].default
        ]
        lines = [*result.provenance_lines(self.profile, self.link), *([", ".join(given)] if given else [])]
        return [f"{line[0].upper()}{line[1:]}." for line in lines]

    def efficiency(self, record: Record) -> float:
        """Throughput over that of as many independent devices, each as fast as the profile's."""
        return formulas.scaling_efficiency(record.throughput, self.profile.throughput, record.num_devices)


@dataclass(frozen=True)
class Points:
    """The records that belong. left_out: reason -> number of records."""

    measured: list[Record] = field(default_factory=list)
    emulated: list[EmulationRecord] = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)

    def with_others(self, others: "Points") -> "Points":
        return Points(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(others).values(), strict=True)))

    def notes(self) -> list[str]:
        return [f"left out: {count} record{'' if count == 1 else 's'}: {why}" for why, count in self.left_out.items()]


def find(folders: list[str], asked: Asked, option: str = "POINTS") -> Points:
    found = Points()
    for folder in folders:
        place = Path(folder).expanduser()
        runs = [load(place)] if packed.holds_file(place) else find_runs(place)
        runs = [record for record in runs if record.ok and record.num_devices > 1]
        for record in [*runs, *map(emulations.load, packed.find_files(place, emulations.NAME))]:
            if record.config.mode not in asked.configs:
                continue
            if why := why_not(record, asked):
                found.left_out[why] += 1
            else:
                (found.emulated if isinstance(record, EmulationRecord) else found.measured).append(record)
    if not found.measured and not found.emulated:
        said = "; ".join(found.notes()) or "there is no run on several devices and no emulation of these modes"
        raise UserError(f"{option}={','.join(folders)} contains no records that belong to this forecast: {said}")
    return found


def why_not(record: Record, asked: Asked) -> str:
    """Why a record does not belong; "" where it does."""
    reasons = of_emulation(record, asked) if isinstance(record, EmulationRecord) else of_run(record, asked)
    return next(filter(None, reasons), "")


def of_emulation(record: EmulationRecord, asked: Asked) -> Iterator[str]:
    plan, link = record.plan, asked.link
    yield "" if plan.profile == asked.profile else f"emulated from another profile, {plan.profile.source}"
    yield other_engine(record.config, asked.configs[record.config.mode], plan.dilate)
    yield other_rate(plan.rate_mbit, link)
    apart = abs(plan.latency_ms - 1e3 * link.alpha_s)
    yield f"emulated with a latency of {plan.latency_ms:g} ms" if apart > NEAR_MS else ""
    yield "emulated with one device per node" if link.inside else ""


def of_run(record: Record, asked: Asked) -> Iterator[str]:
    yield other_work(record, asked.record)
    yield crowded(record)
    yield other_engine(record.config, asked.configs[record.config.mode])
    rate = limit_of(record.network)
    if rate is not None or LABEL.fullmatch(record.network or ""):
        yield other_rate(rate, asked.link)
    elif not (record.on_gpu or record.several_machines or asked.link.rate_mbit is None
              or (asked.link.inside and record.num_devices <= asked.link.per_node)):  # fmt: skip
        yield "processes of one machine, without a link"
    each = math.ceil(record.num_devices / max(1, len(record.nodes)))
    if asked.link.inside and each != min(record.num_devices, asked.link.per_node):
        yield f"{each} devices per node, but PER_NODE={asked.link.per_node}"
    if (efficiency := asked.efficiency(record)) > FASTER:
        yield f"{100 * efficiency:.0f} % efficiency, so the profile's device was slower: profile again next to the runs"


def other_work(record: Record, own: Record) -> str:
    """How a run's work or devices differ from those of a profile's record; "" where they are equal."""
    return next(differences(record, own), "")


def differences(record: Record, own: Record) -> Iterator[str]:
    for name in SAME_STEP:
        if (value := getattr(record.config, name)) != (wanted := getattr(own.config, name)):
            yield f"{in_words(FIELDS[name], value)}, but {wanted} in the profile"
    there, here = device_of(record), device_of(own)
    yield from (f"{name} {there[name]}, but {here[name]} in the profile" for name in here if there[name] != here[name])
    threads, wanted = record.samples[0].threads, own.samples[0].threads
    if not record.on_gpu and threads != wanted:
        yield f"{threads} threads per process, but {wanted} in the profile"


def device_of(record: Record) -> dict[str, str]:
    known = of_environment(record.environment)
    gpus = " and ".join(sorted(set(used_gpus(record)))) or "none"
    return {"processor": known["processor"], "GPU": gpus, "torch": known["torch"]}


def other_engine(config: RunConfig, forecast: RunConfig, dilate: float = 1.0) -> str:
    """The first of the mode's own options that differs from the forecast's; "" for none. dilate: an emulation's, which
    slows Horovod's cycle."""
    for name in MODES[config.mode].knobs:
        value, wanted = (getattr(each, name) or DEFAULTS.get(name, getattr(each, name)) for each in (config, forecast))
        value = value / dilate if name == "cycle_time_ms" else value
        if value != wanted:
            return f"{config.mode} with {in_words(FIELDS[name], value)}"
    return ""


def crowded(record: Record) -> str:
    """That devices share cores; a forecast assumes that they do not. Namespaces are on one machine."""
    if record.on_gpu:
        return ""
    one_machine = bool(LABEL.fullmatch(record.network or ""))
    cores, threads = {}, Counter()
    for sample in record.samples:
        machine = 0 if one_machine else sample.node
        cores[machine] = record.nodes[machine].environment["machine"]["logical_cores"]
        threads[machine] += sample.threads
    full = [machine for machine, count in threads.items() if count > cores[machine]]
    return f"{threads[full[0]]} threads share {cores[full[0]]} cores" if full else ""


def other_rate(rate_mbit: float | None, link: Link) -> str:
    if rate_mbit == link.rate_mbit:
        return ""
    return f"links {'without a limit' if rate_mbit is None else f'of {rate_words(rate_mbit)}'}"


def by_place(records: Iterable[Record]) -> dict[tuple[str, int], list[Record]]:
    """(mode, devices) -> records, without those with PROFILE=1 where there are others: Horovod's timeline takes a core
    in each step."""
    found = {}
    for record in records:
        found.setdefault((record.config.mode, record.num_devices), []).append(record)
    return {place: [each for each in same if not each.config.profile] or same for place, same in found.items()}


def how_emulated(records: list[EmulationRecord]) -> list[str]:
    if not records:
        return []
    slowed = span_words([record.plan.dilate for record in records], "×{:g}")
    text = f"Emulated: real communication; computation is a wait; run {slowed} slower, times divided by that"
    return [f"{text}{disturbed(records)}."]


def span_words(values: list[float], form: str) -> str:
    return " to ".join(form.format(value) for value in dict.fromkeys((min(values), max(values))))


def disturbed(records: list) -> str:
    most = max(disturbances_of(record).get("others_cpu_share", 0.0) for record in records)
    return f"; other processes used up to {100 * most:.0f} % of the CPU" if most else ""
