"""bench/studies/rounds.py when programs of a suite do not end well. Runs are made up: no process is started."""

import contextlib
import dataclasses
import io

import pytest
from rich.console import Console

from bench.analysis.suite import suite_of
from bench.cli.actions.studies import print_result
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import RunFailed
from bench.studies import rounds
from bench.studies.base import Plan
from bench.studies.compare import study as compare
from bench.studies.programs import in_mode
from bench.studies.registry import study_of
from bench.studies.scaling import result as scaling_result
from bench.studies.scaling import study as scaling
from tests import records

OUT_OF_MEMORY = "rank 0 raised OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …"
MODES = ["single", "dp", "ddp"]
QUIET = Console(quiet=True)


@pytest.fixture
def made_up(monkeypatch):
    """``made_up(fails, others)``: launches that leave a record, or fail as ``fails(config)`` says; ``others(n)`` is the
    CPU share of other processes in the n-th of them. Gives all records."""
    found = []

    def start(fails, others=lambda number: 0.0):
        def launch(config, watch):
            labels = {n: getattr(config.label, n) for n in ("study", "suite", "program", "round")}
            options = {n: getattr(config, n) for n in ("mode", "num_devices", "accumulate")} | labels
            failed = "raised" if (message := fails(config)) else None
            record = records.record(**options, batch=config.per_device_batch, device="cuda", seconds=len(found),
                                    failed=failed)  # fmt: skip
            record.data["summary"]["others_cpu_share"] = others(len(found))
            found.append(record)
            if message:
                record.data["failure"]["message"] = message
                error = RunFailed(message)
                error.failure = record.failure
                raise error
            return record

        monkeypatch.setattr(rounds, "launch", launch)
        monkeypatch.setattr(rounds, "load", lambda record: record)
        monkeypatch.setattr(rounds, "LiveProgress", lambda *_: contextlib.nullcontext())
        return found

    return start


def recorder() -> Console:
    return Console(record=True, width=300, file=io.StringIO())


def on_gpus(**options) -> RunConfig:
    return resolve(RunConfig(mode="ddp", model="resnet18", **{"num_devices": 4} | options), "cuda", 16)


def test_single_that_does_not_fit_ends_no_comparison(made_up, tmp_path):
    """It has the whole global batch on one device. It is tried once so, and once in passes; the others are compared
    over all rounds."""
    found = made_up(lambda config: OUT_OF_MEMORY if config.mode == "single" else "")
    console, plan = recorder(), Plan(compare.COMPARE, compare.programs(on_gpus(), MODES))
    folder = rounds.run_rounds(console, plan, 3, str(tmp_path))
    assert [r.config.mode for r in found if r.failure] == ["single"] * 2 and len(found) == 2 + 2 * 3
    suite = suite_of(folder.name, found)
    assert list(suite.programs) == ["dp", "ddp"] and suite.n == 3
    study = study_of(suite)
    print_result(console, study, suite, study.result(suite))
    assert "warning: single" in console.export_text()


def test_single_takes_its_step_in_passes_where_its_batch_does_not_fit_at_once(made_up, tmp_path):
    """Known from the first round on. The base of every speed-up is there, and the certificate shows how."""
    found = made_up(lambda config: OUT_OF_MEMORY if config.per_device_batch > 64 else "")
    plan = Plan(compare.COMPARE, compare.programs(on_gpus(per_device_batch=64), MODES),
                extra={"single": in_mode(on_gpus(per_device_batch=64), "single", profile=True)})  # fmt: skip
    folder = rounds.run_rounds(QUIET, plan, 2, str(tmp_path))
    singles = [(r.config.per_device_batch, r.config.accumulate) for r in found if r.config.mode == "single"]
    assert singles == [(256, 1), (64, 4), (64, 4), (64, 4)] and len(found) == 1 + 2 * 3 + 1
    assert plan.programs["single"].accumulate == 1  # another suite of it tries again
    suite = suite_of(folder.name, found)
    assert list(suite.programs) == MODES and suite.n == 2
    (passes,) = [fact for fact in study_of(suite).result(suite).certificate.facts if fact.name == "passes of a step"]
    assert passes.values == {"single": "4", "dp": "1", "ddp": "1"} and passes.status == "inherent"


def test_strong_scaling_goes_on_from_the_fewest_devices_that_fit(made_up, tmp_path):
    found = made_up(lambda config: OUT_OF_MEMORY if config.num_devices == 1 else "")
    plan = Plan(scaling.STRONG, scaling.programs(on_gpus(), MODES, 4, strong=True))
    folder = rounds.run_rounds(QUIET, plan, 2, str(tmp_path))
    result = scaling_result.compare(suite_of(folder.name, found))
    assert result.base == "dp 2"
    efficiency = scaling_result.efficiency(result, result.suite.programs["ddp 4"])
    assert efficiency[0] == pytest.approx(50)  # made up: all are as fast, on twice the base's devices


@pytest.mark.parametrize(
    ("others", "runs", "disturbed"),
    [
        (lambda number: 0.0, 4 * 3, False),
        (lambda number: 0.5 * (number == 1), 5 * 3, False),  # a run of the first round; its repeat is not
        (lambda number: 0.5 * (number == 11), 5 * 3, False),  # the last run of all
        (lambda number: 0.5, 6 * 3, True),  # half of the rounds are repeated, and no more
    ],
)
def test_a_disturbed_round_is_repeated_and_the_repeats_are_bounded(made_up, tmp_path, others, runs, disturbed):
    found = made_up(lambda config: "", others)
    console, seen = recorder(), []
    plan = Plan(compare.COMPARE, compare.programs(on_gpus(), MODES))
    folder = rounds.run_rounds(console, plan, 4, str(tmp_path), lambda done, records: seen.append(done))
    suite = suite_of(folder.name, found)
    assert (len(found), suite.n, suite.disturbed, seen) == (runs, 4, disturbed, [1, 2, 3, 4])
    assert len(suite.left_out) == runs - 4 * 3
    study = study_of(suite)
    print_result(console, study, suite, study.result(suite))
    assert ("DISTURBED" in console.export_text()) == disturbed


def test_trainings_by_epoch_are_not_repeated(made_up, tmp_path):
    found = made_up(lambda config: "", lambda number: 0.5)
    programs = {mode: dataclasses.replace(each, epochs=1) for mode, each in compare.programs(on_gpus(), MODES).items()}
    rounds.run_rounds(QUIET, Plan(compare.COMPARE, programs), 2, str(tmp_path))
    assert len(found) == 2 * 3


@pytest.mark.parametrize(
    ("study", "message", "runs"),
    [
        (compare.COMPARE, OUT_OF_MEMORY, 4),  # nothing fits: dp and ddp as they are, single in passes, too
        (compare.COMPARE, "rank 0 raised ValueError: wrong", 1),
        (dataclasses.replace(compare.COMPARE, partial=False), OUT_OF_MEMORY, 1),
    ],
)
def test_any_other_failure_ends_the_suite(made_up, tmp_path, study, message, runs):
    found = made_up(lambda config: message)
    with pytest.raises(RunFailed, match=message.split(":")[0]):
        rounds.run_rounds(QUIET, Plan(study, compare.programs(on_gpus(), MODES)), 3, str(tmp_path))
    assert len(found) == runs
