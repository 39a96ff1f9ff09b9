"""What was measured or emulated of a forecast: records of the same work, on the same devices, over the same link.

A record that does not belong is left out, and it is said why.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import formulas
from bench.config.fields import variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, RunConfig
from bench.errors import UserError
from bench.launch.cluster.plan import LABEL, limit_of, rate_words
from bench.predict.emulation import record as emulations
from bench.predict.emulation.plan import NAME as EMULATION
from bench.predict.emulation.record import EmulationRecord
from bench.predict.step import result
from bench.predict.step.alike import other_engine, other_work
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile
from bench.record.disturbance import disturbances_of
from bench.record.read import find_runs
from bench.record.view import Record

FASTER = 1.05  # efficiency that no exchange can reach
NEAR_MS = 0.1  # of latency: what the links of namespaces have by themselves


@dataclass(frozen=True)
class Asked:
    """What a forecast is made of. record: that of one device; configs: mode -> what is forecast of it."""

    record: Record
    profile: Profile
    link: Link
    configs: dict[str, RunConfig]

    def standing(self) -> list[str]:
        """What it rests on, and the engines' options that were given, a sentence each."""
        given = [
            f"{mode} with {variable_of(FIELDS[name])}={getattr(config, name)}"
            for mode, config in self.configs.items()
            for name in MODES[mode].knobs
            if getattr(config, name) != FIELDS[name].default
        ]
        lines = [*result.standing(self.profile, self.link), *([", ".join(given)] if given else [])]
        return [f"{line[0].upper()}{line[1:]}." for line in lines]

    def efficiency(self, record: Record) -> float:
        """Of as many devices that need nothing of each other, each as fast as the profile's."""
        one = self.profile.units / self.profile.mean_step_s
        return formulas.scaling_efficiency(record.throughput, one, record.num_devices)


@dataclass(frozen=True)
class Points:
    """What belongs to a forecast. left_out: why -> how many records do not."""

    measured: list[Record] = field(default_factory=list)
    emulated: list[EmulationRecord] = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """What is left out, and why."""
        return [f"left out: {count} record{'' if count == 1 else 's'}: {why}" for why, count in self.left_out.items()]


def find(folders: list[str], asked: Asked) -> Points:
    """The records below folders which belong. Raises UserError where none does."""
    found = Points()
    for record in read(folders):
        if record.config.mode not in asked.configs:
            continue
        emulated = isinstance(record, EmulationRecord)
        if why := why_not(record, asked):
            found.left_out[why] += 1
        else:
            (found.emulated if emulated else found.measured).append(record)
    if not found.measured and not found.emulated:
        said = "; ".join(found.notes()) or "no run on several devices and no emulation of these modes is there"
        raise UserError(f"POINTS={','.join(folders)} has nothing that belongs to this forecast: {said}")
    return found


def read(folders: list[str]) -> Iterator[Record]:
    """Runs that were timed on several devices, and emulations. Raises UserError, BadRecord."""
    for folder in folders:
        place = Path(folder).expanduser()
        yield from (record for record in find_runs(place) if record.ok and record.num_devices > 1)
        yield from map(emulations.load, sorted(place.rglob(EMULATION)))


def why_not(record: Record, asked: Asked) -> str:
    """Why a record does not belong; "" where it does."""
    reasons = of_emulation(record, asked) if isinstance(record, EmulationRecord) else of_run(record, asked)
    return next(filter(None, reasons), "")


def of_emulation(record: EmulationRecord, asked: Asked) -> Iterator[str]:
    """Reasons, or "": another profile, engine or link."""
    plan, link = record.plan, asked.link
    yield "" if plan.profile == asked.profile else f"emulated from another profile, {plan.profile.source}"
    yield other_engine(record.config, asked.configs[record.config.mode], plan.dilate)
    yield other_rate(plan.rate_mbit, link)
    apart = abs(plan.latency_ms - 1e3 * link.alpha_s)
    yield f"emulated with a latency of {plan.latency_ms:g} ms" if apart > NEAR_MS else ""
    yield "emulated with one device per node" if link.inside else ""


def of_run(record: Record, asked: Asked) -> Iterator[str]:
    """Reasons, or "": other work or devices, cores that devices share, another engine or link."""
    yield other_work(record, asked.record)
    yield crowded(record)
    yield other_engine(record.config, asked.configs[record.config.mode])
    yield over_another_link(record, asked.link)
    if (efficiency := asked.efficiency(record)) > FASTER:
        yield f"{100 * efficiency:.0f} % of as many of the profile's device, which was slower: take one beside the runs"


def crowded(record: Record) -> str:
    """That devices share cores, which a forecast takes each to have for itself. Namespaces are of one machine."""
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
    """That links are not as fast as the forecast's."""
    if rate_mbit == link.rate_mbit:
        return ""
    return f"links {'without a limit' if rate_mbit is None else f'of {rate_words(rate_mbit)}'}"


def over_another_link(record: Record, link: Link) -> str:
    """Of a network of which a rate is known, that it is another one; on CPUs of one machine, that there is no link."""
    rate = limit_of(record.network)
    if rate is not None or LABEL.fullmatch(record.network or ""):
        return other_rate(rate, link)
    if record.on_gpu or record.several_machines or link.rate_mbit is None:
        return ""
    return "processes of one machine, without a link"


def by_place(records: Iterable[Record]) -> dict[tuple[str, int], list[Record]]:
    """(mode, devices) -> the records; where there are some without PROFILE, these alone: Horovod's own timeline takes
    a core of each step."""
    found = {}
    for record in records:
        found.setdefault((record.config.mode, record.num_devices), []).append(record)
    return {place: [each for each in same if not each.config.profile] or same for place, same in found.items()}


def how_emulated(records: list[EmulationRecord]) -> list[str]:
    """What an emulated figure is, and by how much these were slowed; nothing without records."""
    if not records:
        return []
    slowed = span([record.plan.dilate for record in records], "×{:g}")
    return [f"Emulated: real engines, computation waited for, slowed {slowed} and divided back{disturbed(records)}."]


def span(values: list[float], form: str) -> str:
    """The least and the largest of values.

    >>> span([4, 7, 5], "×{:g}"), span([3, 3], "{:g}")
    ('×4 to ×7', '3')
    """
    return " to ".join(form.format(value) for value in dict.fromkeys((min(values), max(values))))


def disturbed(records: list) -> str:
    """What other programs took of the CPU at most, where that is much."""
    most = max(disturbances_of(record).get("others_cpu_share", 0.0) for record in records)
    return f"; other programs took up to {100 * most:.0f} % of the CPU" if most else ""
