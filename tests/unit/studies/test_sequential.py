"""ROUNDS=auto: its error rate and its coverage by simulation, when it ends, and what records and report say of it.

The simulations drive the rule itself (``Sequence``) with seeded noise, and judge with the intervals that the report
computes. A bound with monte_carlo in it is the promised rate give or take three standard errors of the simulation.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from bench.__main__ import main
from bench.analysis import stats, tables
from bench.analysis.comparison import compare_suite
from bench.formulas import confidence_per_look
from bench.record.view import Record
from bench.report.page import page
from bench.report.pooling import confidence_of
from bench.studies import rounds
from bench.studies.base import LOOKS
from bench.studies.rounds import Sequence
from tests import records

DRAWS = 1000
LEVEL = confidence_per_look(0.95, len(LOOKS))


def monte_carlo(rate: float) -> float:
    """Three standard errors of a rate found by simulation."""
    return 3 * math.sqrt(rate * (1 - rate) / DRAWS)


class Simulated:
    """One suite whose rounds are given: throughputs [round][mode], until the rule ends it, or the limit in minutes, of
    which a round takes one."""

    def __init__(self, throughputs, minutes: float = 1e9):
        self.time, self.said = 0.0, []
        sequence = Sequence(self.judge, minutes, self.said.append, clock=lambda: 60 * self.time)
        for self.rounds, one in enumerate(throughputs, 1):
            self.time += 1
            if sequence.enough(self.rounds, [one]):
                break
        if self.rounds not in LOOKS:
            self.judge(sequence.records)
        self.verdicts = [pair.comparison.verdict for pair in self.pairs]

    def judge(self, rows):
        modes = list(zip(*rows, strict=True))
        self.pairs = [self.pair(modes, *ab) for ab in itertools.combinations(range(len(modes)), 2)]
        return self

    def pair(self, modes, a: int, b: int):
        _, low, high = stats.interval(modes[a], modes[b], LEVEL)
        found = SimpleNamespace(low=low, high=high, verdict=stats.verdict(low, high, 0.02))
        return SimpleNamespace(a=str(a), b=str(b), comparison=found)


def simulate(sd: float, speeds=(1.0, 1.0), noise: str = "normal", **options) -> list[Simulated]:
    """Many suites of modes of these true speeds, with noise of this log deviation on each run."""
    draw = np.random.default_rng([round(1e4 * sd), len(speeds), round(1e4 * speeds[-1])])
    shape = (DRAWS, LOOKS[-1], len(speeds))
    wild = draw.normal(0, sd, shape) if noise == "normal" else draw.standard_t(2, shape) * sd
    return [Simulated(each, **options) for each in (np.exp(wild) * np.array(speeds)).tolist()]


def share(found: list[Simulated], words: set[str]) -> float:
    """The share of suites with a pair that has one of these verdicts."""
    return sum(bool(words & {*each.verdicts}) for each in found) / len(found)


def covered(found: list[Simulated], ratio: float) -> float:
    """The share of suites whose last interval of the last pair holds the true ratio."""
    ends = [each.pairs[-1].comparison for each in found]
    return sum(low.low <= ratio <= low.high for low in ends) / len(found)


@pytest.mark.parametrize(
    ("sd", "ratio", "noise"),
    [(0.005, 1.0, "normal"), (0.03, 1.0, "heavy"), (0.1, 1.0, "normal"), (0.1, 1.0, "heavy"), (0.02, 1.01, "normal"),
     (0.06, 1.03, "normal"), (0.02, 1.3, "normal"), (0.06, 1.01, "normal")],
)  # fmt: skip
def test_the_interval_that_is_published_covers_and_fewer_than_one_of_twenty_verdicts_is_wrong(sd, ratio, noise):
    """At least 95 %: Bonferroni's bound is conservative, since looks at growing data agree more often than by chance.
    The end is chosen by what was seen, and with a difference it is often chosen early."""
    found = simulate(sd, (1.0, ratio), noise)
    assert covered(found, ratio) > 0.95 - monte_carlo(0.05)
    wrong = {"slower", *(["faster"] if ratio == 1 else []), *(["tie"] if ratio > 1.02 else [])}
    assert share(found, wrong) < 0.05
    assert len({each.rounds for each in found}) > 1 or ratio == 1.3  # they did end at several looks


def test_it_holds_for_each_pair_where_another_pair_decides_when_to_end():
    """Two equal modes, and a third that is near them, so that the rounds continue because of it."""
    found = simulate(0.03, (1.04, 1.0, 1.0))
    equal = [each.verdicts[-1] for each in found]
    assert sum(v in ("faster", "slower") for v in equal) / DRAWS < 0.05
    assert covered(found, 1.0) > 0.95 - monte_carlo(0.05)


def test_it_holds_where_the_time_is_up_between_two_looks_and_ends_early_where_it_can():
    found = simulate(0.03, minutes=11.5)
    assert {each.rounds for each in found} == {4, 8, 11}
    assert share(found, {"faster", "slower"}) < 0.05 and covered(found, 1.0) > 0.95 - monte_carlo(0.05)
    large, equal = simulate(0.03, (1.0, 1.3)), simulate(0.01)
    assert sum(each.rounds == 4 and each.verdicts == ["faster"] for each in large) > 0.9 * DRAWS
    assert sum(each.verdicts == ["tie"] for each in equal) > 0.9 * DRAWS


def test_it_ends_after_the_last_look_or_the_limit_and_tells_both():
    alternating = [[1.0, 1.5, 1.5 + 0.5 * (-1) ** n] for n in range(99)]
    found = Simulated(alternating, minutes=30)
    assert "30 min" in found.said[0] and found.rounds == 30 and "MAX_MINUTES=30" in found.said[-1]
    assert Simulated(alternating).rounds == LOOKS[-1]
    assert Simulated(alternating, minutes=0.1).rounds == 1  # one round may take longer than the limit


LABELS = {"looks": "4,8,16,32,64", "limit_minutes": 60.0}
NOISE = [1.00, 1.05, 0.96, 1.02, 0.99, 1.04, 0.97, 1.01]


def sequential(rounds: int = 8, **common):
    """A suite that was looked at twice: dp is far away, ddp near."""
    speeds = {"single": 100.0, "dp": 60.0, "ddp": [103.5 * x for x in NOISE[::-1]]}
    programs = {mode: options for mode, options in records.compare_programs(**speeds).items() if mode in speeds}
    return records.suite("compare", programs, rounds=rounds, **common)


def test_the_report_knows_from_the_records_that_the_suite_was_sequential():
    """With a fixed number of rounds the same figures have the interval of 95 %, and a verdict that is not there yet."""
    fixed, found = (compare_suite(sequential(**labels)).pair("single", "ddp") for labels in ({}, LABELS))
    a, b = ([r.throughput for r in sequential().programs[mode].records] for mode in ("single", "ddp"))
    for pair, level in ((fixed, 0.95), (found, 0.99)):
        expected = stats.interval(a, b, level)
        assert (pair.comparison.ratio, pair.comparison.low, pair.comparison.high) == pytest.approx(expected)
    assert (fixed.comparison.verdict, found.comparison.verdict) == ("faster", "no difference")
    assert found.comparison.p_difference == pytest.approx(5 * fixed.comparison.p_difference)
    assert found.comparison.p == pytest.approx(min(1, 5 * fixed.comparison.p))


def test_table_and_page_tell_the_rule_and_it_replaces_an_older_suite_of_eight_rounds():
    older, newer = sequential(), sequential(rounds=4, name="0002", **LABELS)
    result = compare_suite(sequential(**LABELS))
    assert [row[-1] for row in tables.pairs_grid(result).rows] == ["4 rounds", "", "4 rounds"]
    assert result.rounds_needed() and not compare_suite(older).rounds_needed()
    text = page([older, newer], [], [])
    assert f'id="{newer.id}"' in text and f'id="{older.id}"' not in text
    assert "4, 8, 16, 32, 64" in text and "ROUNDS=auto MAX_MINUTES=60" in text
    assert confidence_of([*older.records, *newer.records]) == pytest.approx(0.99)  # in other tables, too


def test_the_command_goes_on_until_there_are_verdicts(tmp_path, monkeypatch, capsys):
    """Real plans, rounds, looks and page; only the runs are made up."""

    def made_up(console, plan, label, config, number, folder, title) -> Record:
        speed = {"single": 100.0, "dp": 80.0, "ddp": 90.0, "horovod": 70.0}[label] * NOISE[(number + len(label)) % 8]
        shape = records.shape(label, 2)
        labels = {"study": "compare", "suite": folder.name, "program": label, "round": number}
        kept = {name: getattr(config.label, name) for name in LABELS}
        found = records.record(label, speed, seconds=60.0 * number + len(label), **shape, **labels, **kept)
        records.store(folder / str(number), [found])
        return found

    monkeypatch.setattr(rounds, "run_one", made_up)
    monkeypatch.setattr("bench.studies.compare.study.bounds_of", lambda config: [])
    monkeypatch.setattr("bench.studies.programs.available", lambda *asked: ["single", "dp", "ddp", "horovod"])
    code = main(["compare", "--gpus=2", "--device=cpu", "--rounds=auto", "--max-minutes=5", f"--out={tmp_path}"])
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0 and "round 8 of" in said and "round 9 of" not in said
    assert "after 4 rounds: " in said and "after 8 rounds: 6 of 6 pairs" in said
    (folder,) = tmp_path.iterdir()
    assert "ROUNDS=auto MAX_MINUTES=5" in (folder / "report.html").read_text()
