"""The parity certificate: what was equal across the programs of a comparison, read from the records (parity.py).

- equal: the same in every record;
- inherent: differs because the modes ARE that difference (single's one device, batch norm over another number of
  images); it is named, and no verdict can be freed of it;
- differs: what makes a comparison unfair. Not recorded counts as differing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench.analysis import parity
from bench.analysis.parity import UNKNOWN
from bench.config.options import UNSET, WORK
from bench.config.options import names as names_of_options
from bench.record.describe import differing_nodes, where
from bench.record.view import Record

Programs = dict[str, list[Record]]  # label -> its good records, one per round


@dataclass(frozen=True)
class Rules:
    """What a study varies on purpose, so that it is not unfair."""

    # fact -> why it may differ, and a function of a record: records for which it gives the same may not differ even so
    varies: dict[str, tuple[str, Callable]] = field(default_factory=dict)
    by_round: tuple[str, ...] = ()  # facts that are another in every round, and are compared round by round
    ranks_apart: tuple[str, ...] = ()  # facts of which the ranks of one run need not agree
    options: tuple[str, ...] = ()  # options that define the work, in which the programs may differ
    mistakes: bool = False  # a mistake made on purpose is what is studied


NOTHING_VARIES = Rules()


@dataclass(frozen=True)
class Fact:
    name: str
    values: dict[str, str]  # program -> what its records say
    status: str  # equal | inherent | differs | not recorded
    why: str = ""  # only for what is not equal


@dataclass(frozen=True)
class Certificate:
    facts: list[Fact]

    @property
    def differences(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.status in ("differs", UNKNOWN)]

    @property
    def inherent(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.status == "inherent"]

    @property
    def fair(self) -> bool:
        return not self.differences

    def sentence(self) -> str:
        if self.fair:
            return f"fair: {len(self.facts) - len(self.inherent)} facts equal; inherent: {names(self.inherent)}"
        return f"NOT A FAIR COMPARISON: {names(self.differences)}"


def names(facts: list[Fact]) -> str:
    return ", ".join(fact.name for fact in facts) or "none"


def certify(programs: Programs, rules: Rules = NOTHING_VARIES) -> Certificate:
    batched = next(record for records in programs.values() for record in records).workload.batched
    facts = []
    for name, read in parity.FACTS.items():
        allowed = rules.varies.get(name) or parity.INHERENT.get(name)
        fact = judge(name, programs, read, allowed, name in rules.by_round, name in rules.ranks_apart)
        facts.append(replace(fact, name=name.replace("images", batched)))
    facts += [*passes(programs), *several_machines(programs), *interruptions(programs), *sources(programs)]
    return Certificate([*facts, other_options(programs, rules), injected_mistakes(programs, rules)])


def judge(
    name: str, programs: Programs, read: Callable, allowed: tuple | None = None, by_round: bool = False,
    ranks_apart: bool = False,
) -> Fact:  # fmt: skip
    """One line, by what ``read`` gives of each record. The rest: as in ``Rules``."""
    found = {label: [(read(record), record) for record in records] for label, records in programs.items()}
    values = {label: said([value for value, _ in seen]) for label, seen in found.items()}
    everything = [pair for seen in found.values() for pair in seen]
    distinct = {value for value, _ in everything}
    if None in distinct:
        return Fact(name, values, UNKNOWN, "records of an older schema, or of code that had been changed")
    if parity.DISAGREE in "".join(map(str, distinct)) and not ranks_apart:
        return Fact(name, values, "differs", "the ranks of one run do not agree")
    if len(distinct) == 1:
        return Fact(name, values, "equal")
    why, group = allowed or ("", lambda record: None)
    if by_round:
        rounds = {}
        for value, record in everything:
            rounds.setdefault(record.label.round, []).append((value, record))
        if not all(same_in_groups(pairs, group) for pairs in rounds.values()):
            return Fact(name, values, "differs", "in one round the programs did not get the same")
        equal = all(len({value for value, _ in pairs}) == 1 for pairs in rounds.values())
        return Fact(name, values, "equal") if equal else Fact(name, values, "inherent", why)
    if any(value != seen[0][0] for seen in found.values() for value, _ in seen):
        return Fact(name, values, "differs", "it changed from round to round")
    if allowed and same_in_groups(everything, group):
        return Fact(name, values, "inherent", why)
    return Fact(name, values, "differs", parity.WHY.get(name, "the programs did not get the same"))


def same_in_groups(pairs: list[tuple], group: Callable) -> bool:
    return len({(group(record), value) for value, record in pairs}) == len({group(record) for _, record in pairs})


def said(seen: list) -> str:
    """The values of a program as text: one when all its rounds agree. Hashes are cut to eight digits."""
    texts = [UNKNOWN if value is None else str(value) for value in seen]
    texts = list(dict.fromkeys(text[:8] if len(text) == 64 else text for text in texts))
    return texts[0] if len(texts) == 1 else f"{texts[0]} … {texts[-1]}"


def passes(programs: Programs) -> list[Fact]:
    why = "one device takes the global batch in passes where its memory is too small for it"
    fact = judge("passes of a step", programs, lambda record: record.config.accumulate, (why, parity.number_of_devices))
    return [] if fact.status == "equal" else [fact]


def sources(programs: Programs) -> list[Fact]:
    """What was trained, by its hash, where it is the user's code or text."""
    return [
        judge(name, programs, parity.of_facts(key))
        for name, key in parity.SOURCES.items()
        if any(parity.of_facts(key)(record) for records in programs.values() for record in records)
    ]


def several_machines(programs: Programs) -> list[Fact]:
    """Where a program ran on several machines or over a network that has a name: whether the machines of every run are
    equal, and whether all ran over the same network, on the same machines."""
    records = [record for found in programs.values() for record in found]
    if not any(record.several_machines or record.network for record in records):
        return []
    apart = {label: dict.fromkeys(s for r in found for s in differing_nodes(r)) for label, found in programs.items()}
    alike = {label: "; ".join(sentences) or "alike" for label, sentences in apart.items()}
    networks = {label: said([record.network or "not named" for record in found]) for label, found in programs.items()}
    places = {label: said([where(record) or "one machine" for record in found]) for label, found in programs.items()}
    of_size = {(record.num_devices, where(record)) for record in records}
    placed = ("differs", "as many devices were on other machines")
    if len(set(places.values())) == 1:
        placed = ("equal",)
    elif len(of_size) == len({record.num_devices for record in records}):
        placed = ("inherent", "one device is on one machine")
    one_network = len({record.network for record in records}) == 1
    return [
        Fact("machines of a run", alike, *(("differs", "they are not alike") if any(apart.values()) else ("equal",))),
        Fact("network", networks, *(("equal",) if one_network else ("differs", "figures of different networks"))),
        Fact("placement", places, *placed),
    ]


def interruptions(programs: Programs) -> list[Fact]:
    """Runs with ELASTIC that were interrupted: what is left of their times compares with nothing."""
    counts = {label: sum(len(record.interruptions) for record in found) for label, found in programs.items()}
    values = {label: str(count) for label, count in counts.items()}
    return [Fact("interruptions", values, "differs", "ranks were lost while it ran")] if any(counts.values()) else []


def other_options(programs: Programs, rules: Rules) -> Fact:
    """The options of the work that no fact of the table shows: a new one is among them without a line here."""
    rest = [name for name in names_of_options(*WORK) if name not in parity.SHOWN and name not in rules.options]

    def given(record: Record) -> str:
        return " ".join(f"{n}={v}" for n in rest if (v := getattr(record.config, n)) != UNSET[n]) or "defaults"

    found = {label: list(map(given, records)) for label, records in programs.items()}
    values = {label: said(texts) for label, texts in found.items()}
    if len({text for texts in found.values() for text in texts}) == 1:
        return Fact("other options", values, "equal")
    return Fact("other options", values, "differs", "the programs were not asked for the same")


def injected_mistakes(programs: Programs, rules: Rules) -> Fact:
    """MISTAKE in any program makes a comparison unfair, though all may have it; but for a study of mistakes."""
    values = {label: said([record.config.mistake for record in records]) for label, records in programs.items()}
    name = "mistakes made on purpose"
    if set(values.values()) <= {"none"}:
        return Fact(name, values, "equal")
    if rules.mistakes:
        return Fact(name, values, "inherent", "it is what the lab studies")
    return Fact(name, values, "differs", "a program that trains wrongly is compared with nothing")
