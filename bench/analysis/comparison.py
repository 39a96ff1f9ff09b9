"""Compare a suite: which configuration is faster, by how much, with what interval, and whether it was fair."""

import dataclasses
import itertools
import math
from dataclasses import dataclass

from bench import formulas
from bench.analysis import stats
from bench.analysis.certificate import NOTHING_VARIES, Certificate, Rules, certify
from bench.analysis.suite import Program, Suite
from bench.config.options import names
from bench.config.sections import Model
from bench.errors import UserError

OF_BOUND = ("gradient", "initial weights")  # facts in which the no-communication baseline differs by design


@dataclass(frozen=True)
class Pair:
    """Program b against program a, by their labels, with the certificate of only these two."""

    a: str
    b: str
    comparison: stats.Comparison
    certificate: Certificate
    decided_after: int | None = None  # of ROUNDS=auto: the interim analysis that gave this pair its verdict

    @property
    def flagged(self) -> bool:
        return not self.certificate.fair

    def sentence(self) -> str:
        said = self.comparison.sentence(self.a, self.b)
        return f"{said}; {self.certificate.sentence()}" if self.flagged else said


@dataclass(frozen=True)
class Result:
    suite: Suite
    base: str  # a label
    certificate: Certificate
    pairs: list[Pair]  # the judged pairs: first those of the base, then, if all pairs are compared, the others
    outliers: dict[str, list[int]]  # label -> its outlier rounds; they are still counted

    def pair(self, a: str, b: str) -> Pair:
        """The pair of two programs, in the direction in which it is always stated. Raises KeyError."""
        for pair in self.pairs:
            if {pair.a, pair.b} == {a, b}:
                return pair
        raise KeyError((a, b))

    def significant(self) -> list[bool]:
        return stats.significant_after_holm([pair.comparison for pair in self.pairs])

    def holm_summary(self) -> str:
        """How many verdicts are significant after Holm correction, in words; empty for a single pair."""
        judged = list(zip(self.pairs, self.significant(), strict=True))
        alone = [pair for pair, holds in judged if not holds and pair.comparison.verdict in stats.VERDICTS]
        count = len(alone) + sum(holds for _, holds in judged)
        if not count or len(judged) < 2:
            return ""
        named = f", except {', '.join(f'{pair.b} / {pair.a}' for pair in alone)}" if alone else ""
        return f"Holm correction over {len(judged)} pairs: {count - len(alone)} of {count} verdicts hold{named}"

    def rounds_needed(self) -> str:
        if not self.suite.looks:
            return ""
        groups = {}
        for pair in sorted(self.pairs, key=lambda pair: pair.decided_after or math.inf):
            groups.setdefault(pair.decided_after, []).append(f"{pair.b} / {pair.a}")
        return "; ".join(
            f"{f'verdict after {n} rounds' if n else 'no verdict'}: {', '.join(pairs)}" for n, pairs in groups.items()
        )

    def ranking(self) -> list[str]:
        """Training modes by the geometric mean of their throughput, the fastest first, without the baseline."""
        ways = [p.label for p in self.suite.programs.values() if not p.is_bound and p.config.sync]
        ratio = {pair.b: pair.comparison.ratio for pair in self.pairs if pair.a == self.base} | {self.base: 1.0}
        return sorted(ways, key=lambda label: -ratio[label])

    def answer(self) -> list[str]:
        """The result in words: the fastest against each other, then the cost of communication."""
        best, *others = self.ranking()
        lines = [self.pair(best, other).sentence() for other in others]
        bounds = [program.label for program in self.suite.programs.values() if program.is_bound]
        lines += [self.pair(bound, way).sentence() for bound in bounds for way in self.ranking() if way != self.base]
        return lines or [f"{best} was the only configuration: nothing to compare"]


def compare_suite(suite: Suite, rules: Rules = NOTHING_VARIES, all_pairs: bool = True) -> Result:
    """Compare by throughput. all_pairs: not only pairs with the base, which is the first. Raises UserError."""
    require_comparable(suite, rules)
    base, *_ = order = list(suite.programs)
    judged = itertools.combinations(order, 2) if all_pairs else itertools.product([base], order[1:])
    pairs = [compare_pair(suite, a, b, rules) for a, b in judged]
    outliers = {}
    for label in order:
        if far := stats.outliers(suite.programs[label].throughputs):
            outliers[label] = [suite.rounds[i] for i in far]
    ways = {p.label: p.records for p in suite.programs.values() if not p.is_bound} or records_of(suite)
    return Result(suite, base, certify(ways, rules), pairs, outliers)


def compare_pair(suite: Suite, a: str, b: str, rules: Rules) -> Pair:
    one, other = suite.programs[a], suite.programs[b]
    certificate = certify({a: one.records, b: other.records}, rules)
    if one.is_bound or other.is_bound:
        inherent = {
            "status": "inherent",
            "why": "the no-communication baseline does not train: it exchanges no gradients",
        }
        certificate = Certificate([
            dataclasses.replace(fact, **inherent) if fact.name in OF_BOUND and fact.status == "differs" else fact
            for fact in certificate.facts
        ])  # fmt: skip
    looks = len(other.first.looks) or 1
    found = stats.compare_rounds(one.throughputs, other.throughputs, looks=looks, disturbed=suite.disturbed)
    return Pair(a, b, found, certificate, deciding_analysis(one, other, found) if suite.looks else None)


def deciding_analysis(a: Program, b: Program, found: stats.Comparison) -> int | None:
    """The interim analysis that gave a pair its verdict; the last one is after the last round."""
    if found.verdict == "disturbed":
        return None
    rounds, looks, since = found.n, b.first.looks, None
    level = formulas.confidence_per_look(stats.CONFIDENCE, len(looks) or 1)
    for n in [*(n for n in looks if n < rounds), rounds]:
        _, low, high = stats.interval(a.throughputs[:n], b.throughputs[:n], level)
        word = stats.verdict(low, high, stats.TIE_MARGIN)
        since = (since or n) if word in stats.VERDICTS else None
    return since


def records_of(suite: Suite) -> dict[str, list]:
    return {program.label: program.records for program in suite.programs.values()}


def require_comparable(suite: Suite, rules: Rules) -> None:
    """Raise UserError if nothing can be paired, or the records differ in the model or the computation."""
    if not suite.programs:
        raise UserError(f"suite {suite.id} has no round in which every configuration succeeded: run it again")
    defining = [*names(Model), "data", "image_size", "epochs", "optimizer", "precision", "device"]
    seen = {name: sorted({str(getattr(record.config, name)) for record in suite.counted}) for name in defining}
    seen["network"] = sorted({record.network or "not named" for record in suite.counted})
    differing = [f"{n} is {' and '.join(v)}" for n, v in seen.items() if len(v) > 1 and n not in rules.options]
    if differing:
        raise UserError(f"suite {suite.id} compares different workloads: {'; '.join(differing)}")
