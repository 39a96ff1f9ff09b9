"""The parity certificate: what was equal across the programs of a comparison, read from the records (parity.py).

- equal: the same in every record;
- inherent: differs because the modes ARE that difference (single's one device, batch norm over another number of
  images); it is named, and no verdict can be freed of it;
- differs: what makes a comparison unfair. Not recorded counts as differing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench.analysis import parity
from bench.analysis.parity import DISAGREE, FACTS, INHERENT, SHOWN, SOURCES, UNKNOWN, WHY, of_facts
from bench.config.options import UNSET, WORK
from bench.config.options import names as names_of_options
from bench.record.describe import differing_nodes, where
from bench.record.view import Record


@dataclass(frozen=True)
class Rules:
    """What a study varies on purpose, so that it is no unfairness.

    varies: fact -> why it may differ, and a function of a record: between records for which it gives the same, the fact
    may not differ even so. by_round: facts that are another in every round, and are compared round by round.
    ranks_apart: facts of which the ranks of one run need not agree. options: options that define the work, in which the
    programs may differ. mistakes: a mistake made on purpose is what is studied.
    """

    varies: dict[str, tuple[str, Callable]] = field(default_factory=dict)
    by_round: tuple[str, ...] = ()
    ranks_apart: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    mistakes: bool = False


NOTHING_VARIES = Rules()


@dataclass(frozen=True)
class Fact:
    """One line of the certificate. values: program -> what its records say. why: only for what is not equal."""

    name: str
    values: dict[str, str]
    status: str  # equal | inherent | differs | not recorded
    why: str


@dataclass(frozen=True)
class Certificate:
    facts: list[Fact]

    @property
    def differences(self) -> list[Fact]:
        """What makes the comparison unfair."""
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


def certify(programs: dict[str, list[Record]], rules: Rules = NOTHING_VARIES) -> Certificate:
    """Compare the programs of a suite. programs: label -> its good records, one per round. rules: what is studied."""
    facts = []
    for name, read in FACTS.items():
        found = {label: [(read(record), record) for record in records] for label, records in programs.items()}
        allowed = rules.varies.get(name) or INHERENT.get(name)
        facts.append(judge(name, found, allowed, name in rules.by_round, name in rules.ranks_apart))
    first = next(record for records in programs.values() for record in records)
    facts = [replace(fact, name=fact.name.replace("images", first.workload.batched)) for fact in facts]
    besides = [*passes(programs), *several_machines(programs), *interruptions(programs), *sources(programs)]
    return Certificate([*facts, *besides, other_options(programs, rules), injected_mistakes(programs, rules)])


def passes(programs: dict[str, list[Record]]) -> list[Fact]:
    """Where programs take a step in other numbers of passes (ACCUMULATE). No line where all take as many."""
    found = {label: [(record.config.accumulate, record) for record in seen] for label, seen in programs.items()}
    if len({value for seen in found.values() for value, _ in seen}) == 1:
        return []
    why = "one device takes the global batch in passes where its memory is too small for it"
    return [judge("passes of a step", found, (why, parity.number_of_devices))]


def sources(programs: dict[str, list[Record]]) -> list[Fact]:
    """What was trained, by its hash, where it is the user's code or text: no line for what any of them has not."""
    facts = []
    for name, key in SOURCES.items():
        found = {label: [(of_facts(key)(record), record) for record in records] for label, records in programs.items()}
        if any(value for seen in found.values() for value, _ in seen):
            facts.append(judge(name, found, None))
    return facts


def several_machines(programs: dict[str, list[Record]]) -> list[Fact]:
    """Where a program ran on several machines: whether those of every run are alike, and whether all ran over the same
    network. No line where every run was on one machine of which no network is named."""
    records = [record for found in programs.values() for record in found]
    if not any(record.several_machines or record.network for record in records):
        return []

    def fact(name: str, values: dict[str, str], status: str, why: str) -> Fact:
        return Fact(name, values, status, "" if status == "equal" else why)

    apart = {label: dict.fromkeys(s for r in found for s in differing_nodes(r)) for label, found in programs.items()}
    alike = {label: "; ".join(sentences) or "alike" for label, sentences in apart.items()}
    networks = {label: said([record.network or "not named" for record in found]) for label, found in programs.items()}
    places = {label: said([where(record) or "one machine" for record in found]) for label, found in programs.items()}
    one_network = len({record.network for record in records}) == 1
    of_size = {(record.num_devices, where(record)) for record in records}
    placed = "inherent" if len(of_size) == len({record.num_devices for record in records}) else "differs"
    return [
        fact("machines of a run", alike, "differs" if any(apart.values()) else "equal", "they are not alike"),
        fact("network", networks, "equal" if one_network else "differs", "figures of different networks"),
        fact("placement", places, "equal" if len(set(places.values())) == 1 else placed, "one device is on one machine"
             if placed == "inherent" else "as many devices were on other machines"),
    ]  # fmt: skip


def interruptions(programs: dict[str, list[Record]]) -> list[Fact]:
    """Runs with ELASTIC that were interrupted: what is left of their times compares with nothing. No line without."""
    counts = {label: sum(len(record.interruptions) for record in found) for label, found in programs.items()}
    if not any(counts.values()):
        return []
    return [Fact("interruptions", {label: str(count) for label, count in counts.items()}, "differs",
                 "ranks were lost while it ran")]  # fmt: skip


def other_options(programs: dict[str, list[Record]], rules: Rules) -> Fact:
    """The options of the work that no fact of the table shows: a new one is among them without a line here."""
    rest = [name for name in names_of_options(*WORK) if name not in SHOWN and name not in rules.options]
    given = {label: [set_options(record, rest) for record in records] for label, records in programs.items()}
    equal = len({found for label in given for found in given[label]}) == 1
    why = "" if equal else "the programs were not asked for the same"
    return Fact("other options", {label: said(found) for label, found in given.items()},
                "equal" if equal else "differs", why)  # fmt: skip


def set_options(record: Record, names: list[str]) -> str:
    return " ".join(f"{n}={value}" for n in names if (value := getattr(record.config, n)) != UNSET[n]) or "defaults"


def injected_mistakes(programs: dict[str, list[Record]], rules: Rules) -> Fact:
    """MISTAKE in any program makes a comparison unfair, though all may have it; but for a study of mistakes."""
    values = {label: said([record.config.mistake for record in records]) for label, records in programs.items()}
    name = "mistakes made on purpose"
    if set(values.values()) <= {"none"}:
        return Fact(name, values, "equal", "")
    if rules.mistakes:
        return Fact(name, values, "inherent", "it is what the lab studies")
    return Fact(name, values, "differs", "a program that trains wrongly is compared with nothing")


def judge(
    name: str, found: dict[str, list[tuple]], allowed: tuple | None, by_round: bool = False, ranks_apart: bool = False
) -> Fact:
    """One line. found: program -> (value, record) of each round. allowed: None, or why the value may differ and a
    function of a record: between records for which it gives the same, the value may not differ even so. by_round: it is
    another in every round, and must be the same in all programs of one round. ranks_apart: the ranks of a run may
    disagree."""
    values = {label: said([value for value, _ in seen]) for label, seen in found.items()}
    everything = [pair for seen in found.values() for pair in seen]
    distinct = {value for value, _ in everything}
    if None in distinct:
        return Fact(name, values, UNKNOWN, "records of an older schema, or of code that had been changed")
    if DISAGREE in "".join(map(str, distinct)) and not ranks_apart:
        return Fact(name, values, "differs", "the ranks of one run do not agree")
    if len(distinct) == 1:
        return Fact(name, values, "equal", "")
    why, group = allowed or ("", lambda record: None)
    if by_round:
        rounds = each_round(found).values()
        if not all(same_in_groups(pairs, group) for pairs in rounds):
            return Fact(name, values, "differs", "in one round the programs did not get the same")
        equal = all(len({value for value, _ in pairs}) == 1 for pairs in rounds)
        return Fact(name, values, "equal" if equal else "inherent", "" if equal else why)
    if any(value != seen[0][0] for seen in found.values() for value, _ in seen):
        return Fact(name, values, "differs", "it changed from round to round")
    if allowed and same_in_groups(everything, group):
        return Fact(name, values, "inherent", why)
    return Fact(name, values, "differs", WHY.get(name, "the programs did not get the same"))


def each_round(found: dict[str, list[tuple]]) -> dict[int, list[tuple]]:
    """Round -> the (value, record) of every program in it."""
    rounds = {}
    for value, record in (pair for seen in found.values() for pair in seen):
        rounds.setdefault(record.label.round, []).append((value, record))
    return rounds


def same_in_groups(pairs: list[tuple], group) -> bool:
    """Whether records of one group have one value. pairs: (value, record). group: record -> its group."""
    return len({(group(record), value) for value, record in pairs}) == len({group(record) for _, record in pairs})


def said(seen: list) -> str:
    """The values of a program as text: one when all its rounds agree."""
    texts = list(dict.fromkeys(UNKNOWN if value is None else shown(value) for value in seen))
    return texts[0] if len(texts) == 1 else f"{texts[0]} … {texts[-1]}"


def shown(value) -> str:
    """A value for a cell: hashes are cut to eight digits."""
    text = str(value)
    return text[:8] if len(text) == 64 else text
