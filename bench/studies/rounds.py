"""Run the configurations of a suite in interleaved rounds: A B C, then in another order, and so on; one record each.

ROUNDS=auto: interim analyses after 4, 8, 16, 32 and 64 rounds; the rounds end when every pair has a verdict. Five
unadjusted looks at 95 % would find a difference between equal modes in one suite of six. So each interval is at 99 %
(``formulas.confidence_per_look``), which gives one of 25. If the time is up before the next interim analysis, it is
made after the last complete round: time decides, not the measurements.
"""

import dataclasses
import secrets
import time
from pathlib import Path

from bench.analysis.stats import VERDICTS
from bench.config.options import RunConfig
from bench.errors import ExitCode, RunFailed, UserError
from bench.launch.launcher import launch
from bench.launch.progress_bar import LiveProgress
from bench.record.describe import did_not_fit
from bench.record.disturbance import in_words, worst
from bench.record.read import load
from bench.record.view import Record
from bench.studies.base import LOOKS, Plan
from bench.studies.programs import in_passes, own_seed, passes_in_words, throughput

SAID_FROM_S = 90.0  # a suite that takes longer prints its duration at the start


def order(names: list[str], number: int) -> list[str]:
    """The order of a round, balanced over positions: it is rotated every two rounds, and the second of the two is
    reversed, so that warm-up or a disturbance favours no program. After 2 × len(names) rounds each has had every
    position twice.

    >>> [order(["a", "b", "c"], number) for number in range(4)]
    [['a', 'b', 'c'], ['c', 'b', 'a'], ['b', 'c', 'a'], ['a', 'c', 'b']]
    """
    start = number // 2 % len(names)
    names = names[start:] + names[:start]
    return names[::-1] if number % 2 else names


def repeats_of(plan: Plan, rounds: int) -> int:
    """How many disturbed rounds to repeat at most; 0 for trainings by epochs, with verdicts about accuracy."""
    trains = any(config.epochs for config in plan.programs.values())
    return 0 if trains else min(4, (rounds + 1) // 2)


def new_suite(study: str) -> str:
    return f"{study}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def run_rounds(console, plan: Plan, rounds: int, out: str, after_round=None, may_repeat=None) -> Path:
    """Run every program of a plan once per round, in a rotated order, into OUT/<suite>/; returns that folder.

    after_round: gets the number of rounds done and the records of this one; returns true after the last. may_repeat:
    whether a disturbed round, given the seconds that it took, may be repeated; the last complete attempt counts. A
    program that does not fit into memory continues in passes, or is left out, if the study may be partial. Raises
    UserError if a program cannot run here, RunFailed for an unexpected failure: the records so far stay.
    """
    suite, started = new_suite(plan.study.name), time.monotonic()
    folder, says = Path(out) / suite, plan.says or throughput
    plan = dataclasses.replace(plan, programs=dict(plan.programs), extra=dict(plan.extra))  # some may run in passes
    left, fitted = list(plan.programs), set()
    number, repeats = 0, repeats_of(plan, rounds)
    runs = rounds * len(plan.programs) + len(plan.extra)
    while number < rounds:
        said, records, began = {}, [], time.monotonic()
        for label in order(left, number):
            try:
                record = run_fitting(console, plan, label, number, folder, f"round {number + 1}/{rounds} {label}")
            except (RunFailed, UserError) as error:
                unfit, partial = isinstance(error, RunFailed) and did_not_fit(error.failure), plan.study.partial
                if error.exit_code == ExitCode.INTERRUPTED:
                    raise
                if partial == "any" or (partial and unfit):
                    said[label], last = "did not fit into memory" if unfit else "failed", error
                elif label not in plan.may_fail or isinstance(error, UserError):
                    raise
                else:
                    said[label] = "failed, as expected"
                continue
            said[label] = says(record)
            records.append(record)
            fitted.add(label)
            if number == 0 and len(said) == 1 and (total := runs * (time.monotonic() - began)) > SAID_FROM_S:
                most = "at most about" if may_repeat else "about"
                console.print(f"estimated from this run ({label}), all {runs} runs take {most} {total / 60:.0f} min")
        left = [label for label in left if label in fitted or label in plan.may_fail]
        if not left:
            raise last
        row = ", ".join(f"{label} {said[label]}" for label in plan.programs if label in said)
        console.print(f"round {number + 1} of {rounds} ({time.monotonic() - started:.0f} s): {row}")
        seconds = time.monotonic() - began
        if repeats and (why := in_words(worst(records))) and (may_repeat is None or may_repeat(seconds)):
            console.print(
                f"round {number + 1} was disturbed: {why}. Repeating it takes about {seconds:.0f} s; at most "
                f"{repeats} more repeats in this suite, about {repeats * seconds:.0f} s"
            )
            repeats -= 1
            continue
        number += 1
        if after_round and after_round(number, records):
            break
    for label, config in plan.extra.items():
        if label in left or label not in plan.programs:
            run_one(console, plan, label, config, 0, folder, f"profile {label}")
    return folder


def run_fitting(console, plan: Plan, label: str, number: int, folder: Path, title: str) -> Record:
    """One program's run in a round. One that does not fit runs in passes for the rest of the suite, if allowed."""

    def run() -> Record:
        config = plan.programs[label]
        config = own_seed(config, number) if plan.study.seeded else config
        return run_one(console, plan, label, config, number, folder, title)

    try:
        return run()
    except RunFailed as error:
        config = plan.programs[label]
        alike = [each for each in plan.programs.values() if each.global_batch == config.global_batch]
        devices = max(each.num_devices for each in alike)
        may = plan.study.partial == "memory" and did_not_fit(error.failure)
        once = config.accumulate == min(each.accumulate for each in alike)  # and not in passes already
        if not (may and once and (smaller := in_passes(config, devices))):
            raise
    plan.programs[label] = smaller
    if label in plan.extra:
        plan.extra[label] = in_passes(plan.extra[label], devices)
    console.print(passes_in_words(smaller))
    return run()


def run_one(console, plan: Plan, label: str, config: RunConfig, number: int, folder: Path, title: str) -> Record:
    config = dataclasses.replace(config, out=str(folder), baselines=False)
    config = config.labelled(study=plan.study.name, suite=folder.name, program=label, round=number)
    try:
        with LiveProgress(config, console, title) as watch:
            return load(launch(config, watch))
    except RunFailed as error:
        failed = RunFailed(f"{label}, round {number + 1}: {error}. The records so far are in {folder}")
        failed.exit_code, failed.failure = error.exit_code, error.failure
        raise failed from None


def labelled(plan: Plan, minutes: float) -> Plan:
    """The plan of ROUNDS=auto: every record contains the looks and the limit for the report."""
    looks = ",".join(map(str, LOOKS))
    programs = {label: config.labelled(looks=looks, limit_minutes=minutes) for label, config in plan.programs.items()}
    return dataclasses.replace(plan, programs=programs)


class Sequence:
    """The rounds of ROUNDS=auto. judge: the records so far -> the result. minutes: the limit. say: prints progress."""

    def __init__(self, judge, minutes: float, say, clock=time.monotonic):
        self.judge, self.limit_s, self.say, self.clock = judge, 60 * minutes, say, clock
        self.began = self.round_began = clock()
        self.longest_s, self.records = 0.0, []

    def enough(self, done: int, records: list[Record]) -> bool:
        """Whether this round was the last one. records: of this round."""
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
        now = self.clock()
        self.longest_s, self.round_began = max(self.longest_s, seconds), now
        return now - self.began + seconds <= self.limit_s

    def open_after(self, done: int) -> list[str]:
        pairs = self.judge(self.records).pairs
        left = [f"{pair.b} / {pair.a}" for pair in pairs if pair.comparison.verdict not in VERDICTS]
        said = f"; still open: {', '.join(left)}" if left else ": complete"
        self.say(
            f"interim analysis after {done} rounds: {len(pairs) - len(left)} of {len(pairs)} pairs have a verdict{said}"
        )
        return left
