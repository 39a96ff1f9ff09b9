"""Does a comparison of two equal arms ever claim a difference? Real suites, idle and beside a load, and replayed ones.

    python -m tests.validation.equal_arms --idle 10 --loaded 10 --to results/reference/MACHINE/equal-arms.json
    python -m tests.validation.equal_arms --replay results/reference/MACHINE/equal-arms.json

Both arms are the same configuration. Beside a loaded suite, busy loops are switched on and off by a seeded rule. Run the
first command on an idle machine: it takes about half an hour. The second draws the rounds of 40 idle and 40 loaded suites
from those of the first, builds their records and judges them as `bench compare` does.
"""  # noqa: E501

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

from bench.analysis import tables
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import Suite, suite_of, suites_of
from bench.cli.actions.studies import run_plan
from bench.config.options import RunConfig
from bench.record.disturbance import THRESHOLDS
from bench.record.read import find_records
from bench.record.view import Record
from bench.studies.base import Flags, Plan
from bench.studies.compare.study import COMPARE
from bench.studies.programs import in_mode, prepare
from tests.records import suite_records

ARMS = ("first", "second")
MODE = "single"
WORKLOAD = {"num_devices": 2, "data": "digits", "image_size": 16, "per_device_batch": 8, "device": "cpu"}
ROUNDS = {False: 16, True: 3}
REPLAYED_ROUNDS = 16
SUITES = 40
ON_S, OFF_S = (4.0, 25.0), (2.0, 12.0)  # how long the load is on and off, drawn uniformly
MOST_LOOPS = 4
WITHIN = 0.10
DIFFERENCES = ("faster", "slower")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--loaded", type=int, default=0)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--replay", type=Path)
    asked = parser.parse_args()
    if asked.replay:
        found = replayed(json.loads(asked.replay.read_text()), SUITES)
    else:
        found = []
        for loaded, count in ((False, asked.idle), (True, asked.loaded)):
            for number in range(count):
                found.append(real_suite(loaded, seed=number))
                print(json.dumps({name: value for name, value in found[-1].items() if name != "rounds"}), flush=True)
                if asked.to:
                    asked.to.write_text(json.dumps(found, indent=1) + "\n")
    for line in summary(found):
        print(line)


# --- real suites ------------------------------------------------------------------------------------------------------


def real_suite(loaded: bool, seed: int) -> dict:
    """Run one suite of two equal arms, and what came of it."""
    console = tables.terminal()
    with tempfile.TemporaryDirectory() as out, load(seed) if loaded else contextlib.nullcontext():
        config = in_mode(prepare(console, RunConfig(**WORKLOAD, mode="ddp")), MODE)
        plan = Plan(COMPARE, {f"{MODE} {arm}": config for arm in ARMS})
        folder = run_plan(console, plan, Flags(rounds=ROUNDS[loaded]), out)
        suite = suite_of(folder.name, find_records(folder)[0])
        return judged(suite, loaded) | {
            "seed": seed,
            "machine": suite.machine,
            "rounds": [
                list(map(run_of, pair)) for pair in zip(*(p.records for p in suite.programs.values()), strict=True)
            ],
        }


@contextlib.contextmanager
def load(seed: int):
    """Busy loops, on and off by the seeded rule, until the end of the block."""
    rule, ended = random.Random(seed), threading.Event()

    def switch() -> None:
        while not ended.is_set():
            loops = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(rule.randint(1, MOST_LOOPS))
            ]
            ended.wait(rule.uniform(*ON_S))
            for loop in loops:
                loop.kill()
                loop.wait()
            ended.wait(rule.uniform(*OFF_S))

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_of(record: Record) -> dict:
    """What the replay needs of a run."""
    measured = {name: record["summary"][name] for name in THRESHOLDS if name in record["summary"]}
    return {"images_per_s": record.throughput, **measured}


def judged(suite: Suite, loaded: bool) -> dict:
    """The verdict on the two arms."""
    (pair,) = compare_suite(suite).pairs
    found = pair.comparison
    return {"loaded": loaded, "n": found.n, "verdict": found.verdict, "ratio": found.ratio, "low": found.low,
            "high": found.high}  # fmt: skip


# --- replayed suites --------------------------------------------------------------------------------------------------


def drawn(real: list[dict], suites: int, seed: int = 0) -> list[tuple[bool, list]]:
    """N idle suites and as many loaded ones, as (loaded, rounds), whose rounds are drawn from the real ones:
    beside a load, half of them. The two runs of a round stay together, in either order, with what was measured of the
    load."""
    rule, found = random.Random(seed), []
    pools = {loaded: [pair for each in real if each["loaded"] is loaded for pair in each["rounds"]]
             for loaded in (False, True)}  # fmt: skip
    for number in range(2 * suites):
        loaded = bool(number % 2)
        beside = [loaded and (place == 0 or rule.random() < 0.5) for place in range(REPLAYED_ROUNDS)]
        pairs = [rule.choice(pools[each]) for each in beside]
        found.append((loaded, [rule.sample(pair, 2) for pair in pairs]))
    return found


def replayed(real: list[dict], suites: int, seed: int = 0) -> list[dict]:
    """Such suites, as records, and what `bench compare` says of them."""
    found = []
    for number, (loaded, pairs) in enumerate(drawn(real, suites, seed)):
        speeds = {arm: [pair[place]["images_per_s"] for pair in pairs] for place, arm in enumerate(ARMS)}
        programs = {arm: {"mode": "single", "num_devices": 1, "throughput": speed} for arm, speed in speeds.items()}
        records = suite_records("compare", programs, REPLAYED_ROUNDS, name=f"{number:04x}")
        for record in records:
            run = pairs[record.label.round][ARMS.index(record.program)]
            record.data["summary"] |= {name: value for name, value in run.items() if name in THRESHOLDS}
        (suite,) = suites_of(records)
        found.append(judged(suite, loaded))
    return found


def within(suite: dict) -> bool:
    """Whether no difference was found, with the interval inside ±10 %."""
    return suite["verdict"] in ("tie", "no difference") and suite["low"] >= 1 - WITHIN and suite["high"] <= 1 + WITHIN


def summary(found: list[dict]) -> list[str]:
    """The counts that the manual quotes."""
    lines = []
    for loaded in (False, True):
        some = [each for each in found if each["loaded"] is loaded]
        if not some:
            continue
        words = Counter(each["verdict"] for each in some)
        false = sum(words[word] for word in DIFFERENCES)
        lines.append(f"{'beside a load' if loaded else 'idle'}: {len(some)} suites; false differences {false}; no "
                     f"difference, interval within ±10 %: {sum(map(within, some))}; disturbed {words['disturbed']}; "
                     f"all verdicts: {dict(words)}")  # fmt: skip
    return lines


if __name__ == "__main__":
    main()
