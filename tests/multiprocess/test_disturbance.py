"""A run beside other work says so: in its record, under its table, and so does a suite."""

import contextlib
import subprocess
import sys

import psutil
import pytest
from rich.console import Console

from bench.analysis.suite import suite_of
from bench.config.options import RunConfig
from bench.launch.hosts import HOSTS
from bench.launch.launcher import resolve_here
from bench.record.describe import OTHERS, disturbed, how_quiet
from bench.studies.base import Plan
from bench.studies.compare.study import COMPARE
from bench.studies.rounds import run_rounds
from bench.studies.sequential import Sequence, labelled
from tests.runs import TINY, bench

BUSY = "while True: pass"
COMES_AND_GOES = """
import random, time
draw = random.Random()
while True:
    end = time.monotonic() + draw.expovariate(1)
    while time.monotonic() < end:
        pass
    time.sleep(draw.expovariate(1))
"""


@contextlib.contextmanager
def busy(code: str = BUSY):
    """A process on every core that does nothing useful."""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(psutil.cpu_count())]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("mode", "gpus"), [("single", 1), ("ddp", 2)])
def test_a_run_beside_busy_loops(mode, gpus, tmp_path, ranks):
    ranks.run(tmp_path / "before", mode=mode, gpus=gpus)  # the ranks are there when the loops begin
    with busy():
        result = ranks.run(tmp_path / "beside", mode=mode, gpus=gpus, image_size=16, steps=8)
    assert result.code == 0, result.stderr
    record = result.loaded
    share = record["summary"]["others_cpu_share"]
    assert OTHERS < share <= 1
    loads = [part.load for part in record.samples]
    assert all(load["own_cpu_s"] > 0 and load["involuntary_switches"] > 0 for load in loads)
    said = f"{mode} was disturbed: other processes took {100 * share:.0f} % of the CPU during its timed steps"
    assert said in " ".join(result.stdout.split()) and disturbed([record]) == [said]


def test_own_workers_are_no_others(tmp_path, ranks):
    """A loader's workers are the run's own: what they take is known, whatever else this machine does."""
    result = ranks.run(tmp_path, mode="single", image_size=64, batch=64, workers=2, steps=6)
    (part,) = result.loaded.samples
    assert part.load["own_cpu_s"] <= part.load["machine_cpu_s"] + 0.5
    assert result.loaded["provenance"]["others_cpu_share"]


def test_the_doctor_sees_them_beforehand():
    with busy():
        result = bench("doctor")
    assert result.code == 1 and "of the CPU: what is measured now is theirs, too" in " ".join(result.stdout.split())


@pytest.mark.wide
@pytest.mark.timeout(5400)
def test_of_forty_comparisons_of_a_program_with_itself_at_most_two_tell_it_apart(tmp_path, ranks, monkeypatch):
    """Real runs beside a real load that comes and goes, judged as by ROUNDS=auto after 4 and after 8 rounds. That more
    than two of forty go wrong has a chance of 1 to 2 %; of more rounds, and of other loads,
    tests/unit/studies/test_foreign_load.py tells. It takes eleven minutes where nothing else is at work."""
    monkeypatch.setitem(HOSTS, "local", ranks)
    asked = RunConfig(mode="single", device="cpu", image_size=16, per_device_batch=8, warmup_steps=1, timed_steps=20,
                      baselines=False, **TINY)  # fmt: skip
    plan = labelled(Plan(COMPARE, dict.fromkeys("ab", resolve_here(asked))), 60.0)
    verdicts, records = [], []

    def judge(found):
        return COMPARE.result(suite_of(found[0].config.suite, found))

    for _ in range(40):
        sequence = Sequence(judge, 60.0, print)
        with busy(COMES_AND_GOES):
            run_rounds(Console(quiet=True), plan, 8, str(tmp_path), sequence.enough)
        verdicts.append(judge(sequence.records).pair("a", "b").comparison.verdict)
        records += sequence.records
    print(verdicts)
    assert not how_quiet(records)[0]  # the load was felt, and is in the records
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 2, verdicts
