"""From a suite's rounds to the answer: which mode, by how much, how sure, and whether the comparison was fair."""

import dataclasses
import itertools
from dataclasses import dataclass

from bench.analysis import stats
from bench.analysis.certificate import Certificate, Fact, certify
from bench.analysis.suite import REPLAYED, SEEDED, Suite
from bench.config.modes import MODES
from bench.errors import UserError

# Records that differ in one of these did not do the same work: no certificate can excuse a comparison of them.
WORKLOAD = ("model", "data", "image_size", "epochs", "norm", "optimizer", "precision", "device")
# But for what a kind of suite is about: the certificate looks at it then.
STUDIED = {"knobs": ("precision",), "lab": ("norm",)}
OF_BOUND = ("gradient", "initial weights")


@dataclass(frozen=True)
class Pair:
    """Role b against role a, with the certificate of these two alone."""

    a: str
    b: str
    comparison: stats.Comparison
    certificate: Certificate

    @property
    def flagged(self) -> bool:
        """Something differed that could have been equal."""
        return not self.certificate.fair

    def sentence(self) -> str:
        """The verdict in words, with its flag."""
        said = self.comparison.sentence(self.a, self.b)
        return f"{said}; {self.certificate.sentence()}" if self.flagged else said


@dataclass(frozen=True)
class Result:
    """A suite compared. pairs: the base against every other role first, then the others among themselves.

    outliers: role -> the rounds that lie far from the role's others; they are in every figure all the same.
    """

    suite: Suite
    base: str
    certificate: Certificate
    pairs: list[Pair]
    outliers: dict[str, list[int]]

    def pair(self, a: str, b: str) -> Pair:
        """The pair of two roles, either way round. Raises KeyError when it was not compared."""
        for pair in self.pairs:
            if (pair.a, pair.b) == (a, b):
                return pair
            if (pair.a, pair.b) == (b, a):
                rounds = self.suite.throughputs
                return Pair(a, b, stats.compare_rounds(rounds(a), rounds(b)), pair.certificate)
        raise KeyError((a, b))

    def ranking(self) -> list[str]:
        """Ways to train, by the geometric mean of their throughput, the fastest first; nothing without exchange."""
        roles = [role for role in self.suite.roles if not is_bound(self.suite, role)]
        roles = [role for role in roles if self.suite.roles[role][0]["config"]["sync"]]
        ratio = {pair.b: pair.comparison.ratio for pair in self.pairs if pair.a == self.base} | {self.base: 1.0}
        return sorted(roles, key=lambda role: -ratio[role])

    def answer(self) -> list[str]:
        """The answer in words: the fastest first, then its lead over each other, then what communication costs."""
        best, *others = self.ranking()
        lines = [self.pair(other, best).sentence() for other in others]
        bounds = [role for role in self.suite.roles if is_bound(self.suite, role)]
        lines += [self.pair(bound, role).sentence() for bound in bounds for role in self.ranking() if role != self.base]
        return lines or [f"{best} alone was run: nothing to compare"]


def is_bound(suite: Suite, role: str) -> bool:
    """Whether a role is the bound without communication, and not a way to train."""
    return MODES[suite.roles[role][0]["config"]["mode"]].baseline


def compare_suite(suite: Suite, base: str | None = None) -> Result:
    """Compare the roles of a suite. base: a role; the first one otherwise.

    Raises UserError when the suite has no whole round, when its records are of different workloads (the message names
    what differs), and when it is about accuracy: bench/studies/accuracy/result.py compares that.
    """
    require_rounds(suite)
    if suite.kind in SEEDED:
        raise UserError(f"suite {suite.id} is about accuracy: its throughputs are not compared")
    base = base or next(iter(suite.roles))
    if suite.kind == "replay" and [role.partition(":")[0] for role in suite.roles] != list(REPLAYED):
        raise UserError(f"suite {suite.id} has lost one of its programs ({', '.join(REPLAYED)}): run it again")
    require_one_workload(suite)
    order = [base, *(role for role in suite.roles if role != base)]
    pairs = [compare_pair(suite, a, b) for a, b in itertools.combinations(order, 2)]
    outliers = {role: [suite.rounds[i] for i in stats.outliers(suite.throughputs(role))] for role in order}
    ways = {role: records for role, records in suite.roles.items() if not is_bound(suite, role)} or suite.roles
    outliers = {role: rounds for role, rounds in outliers.items() if rounds}
    return Result(suite, base, certify(ways, suite.kind), pairs, outliers)


def compare_pair(suite: Suite, a: str, b: str) -> Pair:
    """Role b against role a, with the certificate of these two."""
    certificate = certify({a: suite.roles[a], b: suite.roles[b]}, suite.kind)
    if is_bound(suite, a) or is_bound(suite, b):
        facts = [of_bound(fact) if fact.name in OF_BOUND and fact.status == "differs" else fact
                 for fact in certificate.facts]  # fmt: skip
        certificate = Certificate(facts)
    return Pair(a, b, stats.compare_rounds(suite.throughputs(a), suite.throughputs(b)), certificate)


def of_bound(fact: Fact) -> Fact:
    """A line of a certificate in which the bound differs because it is the bound."""
    return dataclasses.replace(fact, status="inherent", why="the bound exchanges nothing: it is no way to train")


def require_rounds(suite: Suite) -> None:
    """Raise UserError when nothing of a suite can be paired."""
    if not suite.roles:
        raise UserError(f"suite {suite.id} has no round in which every program ended well: run it again")


def require_one_workload(suite: Suite) -> None:
    """Raise UserError naming all the options in which a suite's records differ and must not."""
    records = [record for records in suite.roles.values() for record in records]
    same = [name for name in WORKLOAD if name not in STUDIED.get(suite.kind, ())]
    seen = {name: sorted({str(record["config"].get(name)) for record in records}) for name in same}
    differing = [f"{name} is {' and '.join(values)}" for name, values in seen.items() if len(values) > 1]
    if differing:
        raise UserError(f"suite {suite.id} compares different workloads: {'; '.join(differing)}")
