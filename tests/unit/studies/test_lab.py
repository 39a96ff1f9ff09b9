"""Mistakes made on purpose: what needs no second process, and what is reported. That each mistake
does what it is said to is shown by real runs (tests/multiprocess/test_labs.py)."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from bench.analysis.certificate import certify
from bench.analysis.comparison import records_of
from bench.analysis.suite import Suite
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS
from bench.mistakes import INJECTED, MISTAKES
from bench.mistakes.measures import METRIC
from bench.modes.base import Topology
from bench.report.page import page
from bench.studies.base import Flags, Study
from bench.studies.lab.result import LabResult
from bench.studies.lab.study import LAB
from bench.training.script import Script, make_script
from bench.workload import load_workload
from bench.workload.images.digits import Digits
from bench.workload.loader import Draws, SlowStorage
from tests import records
from tests.runs import refuses
from tests.shown import text_of


def script(name: str, rank: int = 0, **options) -> Script:
    """A mistake in a process that has no others: what it draws, and from where, is asked of nobody."""
    usual = {"mode": "ddp", "num_devices": 2, "per_device_batch": 10, "epochs": 2, "augment": True, "lr_batch": 80}
    config = resolve(RunConfig(**usual | {"mistake": name} | options), "cpu", 2)
    mode = SimpleNamespace(topology=Topology(rank, rank, 2, 1, torch.device("cpu")))
    return make_script(config, mode, None, name)


def test_the_kth_images_of_all_ranks_get_the_same_crop_behind_a_slow_storage_too():
    digits = Digits(8, train=True, augment=True)
    right = [digits.augmentation_seeds(np.arange(r, 40, 2)) for r in (0, 1)]
    assert not np.array_equal(*right)
    script("same-augmentation").prepare_data(SlowStorage(digits, 0.0))
    shares = [Draws(made.config, made.topology, len(digits), 200) for made in map(script, ("none",) * 2, (0, 1))]
    seeds = [digits.augmentation_seeds(np.concatenate(list(share))) for share in shares]
    assert np.array_equal(*seeds) and len(set(seeds[0].tolist())) == len(seeds[0])  # over several epochs


def test_the_devices_losses_are_summed_under_dp():
    config = resolve(RunConfig(mode="dp", num_devices=2, per_device_batch=4, mistake="gradient-sum"), "cpu", 2)
    mode = SimpleNamespace(topology=Topology(0, 0, 1, 2, torch.device("cpu")))
    outputs, labels = torch.randn(8, 5), torch.arange(8) % 5
    workload = load_workload(config, torch.device("cpu"))
    scripts = (make_script(config, mode, workload, name) for name in ("gradient-sum", "none"))
    wrong, right = (made.loss(outputs, labels) for made in scripts)
    assert float(wrong) == pytest.approx(2 * float(right))


REFUSED = {
    "whole-data": ({"num_devices": 1}, "INJECT"),
    "same-augmentation": ({"augment": False}, "AUGMENT=1"),
    "no-reshuffle": ({"epochs": 1}, "EPOCHS=2"),
    "rank-metrics": ({"epochs": 0}, "EPOCHS"),
    "many-writers": ({"checkpoint": False}, "CHECKPOINT=0"),
    "rank0-collective": ({"mode": "dp"}, "INJECT"),
    "lr-not-scaled": ({"lr_batch": 20}, "LR_BASE_BATCH"),
    "strict-false": ({}, "PRETRAINED"),
    "gradient-sum": ({"compression": "fp16"}, "COMPRESSION"),
    "lost-remainder": ({"resume": "somewhere"}, "RESUME=somewhere"),
}


@pytest.mark.parametrize("name", INJECTED)
def test_a_mistake_that_cannot_be_made_is_refused_by_name(name):
    options, named = REFUSED[name]
    with refuses(f"INJECT={name}", named):
        script(name, **options)


@pytest.mark.parametrize(
    ("name", "asked", "named"),
    [("no-reshufle", {}, "no-reshuffle"), ("host-sync", {"mode": "dp"}, "MODE=ddp"),
     ("host-sync", {"item_sync": True}, "INJECT"), ("host-sync", {"num_devices": 1}, "GPUS=2"),
     ("gradient-sum", {"mode": "independent"}, "MODE")],
)  # fmt: skip
def test_a_lab_that_cannot_be_is_refused(name, asked, named):
    with refuses(named):
        list(LAB.plans(Console(quiet=True), RunConfig(**{"mode": "ddp", "num_devices": 2} | asked), Flags(name=name)))


def test_a_shard_that_fills_no_batch_is_refused():
    with refuses("INJECT=lost-remainder", 60):
        script("lost-remainder", per_device_batch=60).epoch_images(103)


def lab(name: str, **options) -> Suite:
    return records.one_suite(records.lab_records(name, **options))


def result_of(name: str, **options) -> LabResult:
    return LAB.result(lab(name, **options))


def test_the_primary_measure_comes_first_with_its_interval():
    result = result_of("no-reshuffle")
    of_images = METRIC.of(WORKLOADS["images"])
    primary, accuracy = result.rows[0], next(row for row in result.rows if row.measure == of_images)
    assert primary.measure == MISTAKES["no-reshuffle"].lab.measures[0] and primary.as_expected
    assert (primary.right, primary.wrong) == (pytest.approx([0.1] * 3), pytest.approx([100.0] * 3))
    assert (primary.low, primary.high) == (pytest.approx(99.9), pytest.approx(99.9))
    assert accuracy.direction == "" and accuracy.low < 0 < accuracy.high
    other = result_of("no-reshuffle", wrong={"data": {"num_images": 1437, "same_neighbours": 0.001}})
    assert not other.rows[0].as_expected and LAB.answer(other)[0] != LAB.answer(result)[0]


def test_a_lab_is_fair_but_for_what_it_studies_and_another_comparison_with_a_mistake_is_not():
    certificate = result_of("no-reshuffle").certificate
    assert certificate.fair and "injected mistakes" in [fact.name for fact in certificate.inherent]
    programs = {mode: {"mode": mode, "mistake": "gradient-sum"} for mode in ("ddp", "horovod")}
    facts = certify(records_of(records.suite("compare", programs, rounds=2))).differences
    assert [fact.name for fact in facts] == ["injected mistakes"]


def test_a_run_that_hung_is_a_result_and_no_failed_run():
    where = [{"file": "bench/training/epochs.py", "line": 7 + rank, "function": "f", "collective": True}
             for rank in (0, 1)]  # fmt: skip
    result = result_of("rank0-collective", hung=where)
    assert result.rows[0].sides == ["0", "1"] and result.rows[0].as_expected
    assert any("27.5 s" in line for line in LAB.answer(result))
    assert "epochs.py:8 (f)" in text_of(LAB.figures(result)["lab"])
    assert "Failed runs" not in page([lab("rank0-collective", hung=where)], [], [])


def test_the_page_has_a_card_per_mistake_in_their_own_order(monkeypatch):
    monkeypatch.setattr(Study, "figures", lambda self, result: {})
    suites = [lab(name, number=f"{i:04x}", hung=[None, None] if name == "rank0-collective" else None)
              for i, name in enumerate(reversed(MISTAKES), 1)]  # fmt: skip
    text = page(suites, [records.record("ddp", mistake="whole-data")], [])
    cards = [each.partition("</article>")[0] for each in text.split('<article class="card"')[1:]]
    assert [re.search(r"<h3>([\w-]+): ", card)[1] for card in cards] == list(MISTAKES)
    for name, card in zip(MISTAKES, cards, strict=True):
        assert "make mistake demo GPUS=2 SEEDS=3" in card and f"NAME={name}" in card
    assert MISTAKES["whole-data"].warning in text.partition("Single runs")[2]  # of a separate run
