"""ROUNDS=auto: rounds go on until every pair has a verdict, by looks that are fixed before the first round.

After 4, 8, 16, 32 and 64 rounds every pair is judged, and the rounds end when none is left without a verdict. Whoever
looks five times at 95 % and stops when something is seen calls equal modes different in one suite of six; so each
interval of such a suite is at 99 % (``formulas.confidence_per_look``), which makes it one of 25. Where the time is up
before the next look, the last whole round is that look: the clock decides on it, and not what was measured, so there
are never more than five.

The looks and the limit go into every record, and the report reads them there.
"""

import dataclasses
import time

from bench.analysis.stats import VERDICTS
from bench.record.view import Record
from bench.studies.base import Plan

LOOKS = (4, 8, 16, 32, 64)
MAX_MINUTES = 60.0


def labelled(plan: Plan, minutes: float) -> Plan:
    """The plan with its looks and its limit in the config of every program."""
    looks = ",".join(map(str, LOOKS))
    programs = {label: config.labelled(looks=looks, limit_minutes=minutes) for label, config in plan.programs.items()}
    return dataclasses.replace(plan, programs=programs)


class Sequence:
    """The rounds of one suite while they go on. judge: the records so far -> the result, with ``pairs``. minutes: the
    limit. say: told how long it may take and what each look found."""

    def __init__(self, judge, minutes: float, say, clock=time.monotonic):
        self.judge, self.limit_s, self.say, self.clock = judge, 60 * minutes, say, clock
        self.began = self.round_began = clock()
        self.longest_s, self.records = 0.0, []

    def enough(self, done: int, records: list[Record]) -> bool:
        """After each round: whether it was the last one. records: of this round."""
        now = self.clock()
        self.longest_s, self.round_began = max(self.longest_s, now - self.round_began), now
        self.records += records
        if done == 1:
            bound = min(LOOKS[-1] * self.longest_s, max(self.limit_s, self.longest_s)) / 60
            self.say(f"one round took {self.longest_s:.0f} s: it will take {bound:.0f} min at most")
        if done in LOOKS and not self.open_after(done):
            return True
        if done < LOOKS[-1] and now - self.began + self.longest_s > self.limit_s:
            self.say(f"MAX_MINUTES={self.limit_s / 60:g} leaves no time for another round after round {done}")
            return True
        return done == LOOKS[-1]

    def has_time(self, seconds: float) -> bool:
        """Whether there is time for another attempt at a round that took so long."""
        now = self.clock()
        self.longest_s, self.round_began = max(self.longest_s, seconds), now
        return now - self.began + seconds <= self.limit_s

    def open_after(self, done: int) -> list[str]:
        """Look at all pairs: those without a verdict, by their programs."""
        pairs = self.judge(self.records).pairs
        left = [f"{pair.b} / {pair.a}" for pair in pairs if pair.comparison.verdict not in VERDICTS]
        said = f", but {', '.join(left)}" if left else ": that is enough"
        self.say(f"look after {done} rounds: {len(pairs) - len(left)} of {len(pairs)} pairs have a verdict{said}")
        return left
