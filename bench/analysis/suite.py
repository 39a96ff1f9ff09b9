"""Records that belong together: a suite is one set of programs (roles), run in interleaved rounds."""

import re
from collections import defaultdict
from dataclasses import dataclass

from bench.analysis.tables import machine_line
from bench.config.modes import MODES

REPLAYED = ("base", "fair", "unfair")
SEEDED = ("accuracy", "lab", "unsynced")  # kinds of suites that train to the end, each round with a seed of its own


@dataclass(frozen=True)
class Suite:
    """One suite's records.

    roles: role -> its records in the order of ``rounds``: only rounds in which every role ended well, so that rounds
    pair; the base first. extra: good records outside of the rounds (profiled runs). failed: the others. left_out: good
    records that are in no figure: of rounds that are not whole, or repeated.
    """

    id: str
    kind: str
    roles: dict[str, list[dict]]
    rounds: list[int]
    extra: list[dict]
    failed: list[dict]
    left_out: list[dict]

    @property
    def n(self) -> int:
        """Rounds that count."""
        return len(self.rounds)

    @property
    def first(self) -> dict:
        """Any good record: machine, device and workload are the same in all."""
        return next(record for records in [*self.roles.values(), self.extra] for record in records)

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return self.first["config"]["device"]

    @property
    def machine(self) -> str:
        """Machine, devices and versions in one line."""
        return machine_line(self.first)

    def throughputs(self, role: str) -> list[float]:
        """Images a second, one a round."""
        return [record["summary"]["throughput_images_per_s"] for record in self.roles[role]]


def suites_of(records: list[dict]) -> list[Suite]:
    """The suites among records, oldest first. Records without a suite, and suites without one good record, are left."""
    groups = defaultdict(list)
    for record in records:
        if record["config"].get("suite"):
            groups[record["config"]["suite"]].append(record)
    suites = [suite_of(name, group) for name, group in groups.items()]
    return [suite for suite in suites if suite.roles or suite.extra]


def suite_of(name: str, records: list[dict]) -> Suite:
    """One suite from its records in any order. Of two records of one role and round the later one counts, and the
    earlier one is left out."""
    good = [r for r in sorted(records, key=lambda r: r["started_at"]) if r["status"] == "ok"]
    table: dict[str, dict[int, dict]] = {}
    repeated = []
    for record in good:
        if not record["config"]["profile"]:
            by_round, number = table.setdefault(role_of(record), {}), record["config"]["round"] or 0
            repeated += [by_round[number]] if number in by_round else []
            by_round[number] = record
    whole = set.intersection(*(set(by_round) for by_round in table.values())) if table else set()
    rounds = sorted(whole)
    order = sorted(table, key=lambda role: place(role, next(iter(table[role].values()))["config"]))
    return Suite(
        name,
        name.partition("-")[0],
        {role: [table[role][n] for n in rounds] for role in order} if rounds else {},
        rounds,
        [r for r in good if r["config"]["profile"]],
        [r for r in records if r["status"] == "failed"],
        [r for by_round in table.values() for n, r in by_round.items() if n not in whole] + repeated,
    )


def place(role: str, config: dict) -> tuple:
    """Where a role stands, whichever of its records was found first: the base is the first of all.

    Few devices before many, with exchange before without, an engine's defaults before its settings, the modes in the
    table's order; of a replay base, fair, unfair.
    """
    head = role.partition(":")[0]
    return (
        REPLAYED.index(head) if head in REPLAYED else 0,
        config["num_devices"] if role.split()[-1].isdecimal() else 0,
        not config["sync"],
        "=" in role,
        list(MODES).index(config["mode"]),
        natural(role),
    )


def natural(text: str) -> list:
    """A key by which 5 comes before 25."""
    words = re.findall(r"\d+\.?\d*|\D+", text)
    return [(0, float(word), "") if word[0].isdigit() else (1, 0.0, word) for word in words]


def role_of(record: dict) -> str:
    """What a record is in its suite; its mode where nothing else was said."""
    return record["config"]["role"] or record["config"]["mode"]
