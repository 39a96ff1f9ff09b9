"""The mistakes made on purpose, as far as they need no second process, and what is said of a lab."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from bench.analysis.certificate import certify
from bench.analysis.comparison import records_of
from bench.analysis.suite import Suite, suites_of
from bench.cli.actions.studies import print_result
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS
from bench.errors import UserError
from bench.mistakes import INJECTED, MISTAKES
from bench.mistakes.many_writers import owner_of
from bench.mistakes.measures import METRIC, Measure
from bench.modes.base import Topology
from bench.report.page import page
from bench.studies.base import Flags, Study
from bench.studies.lab.result import LabResult, Row
from bench.studies.lab.study import LAB
from bench.training.script import Script, make_script
from bench.workload import load_workload
from bench.workload.images.digits import Digits
from bench.workload.loader import Draws, SlowStorage
from tests import records
from tests.shown import in_one_line, text_of

IMAGES, RANKS = 103, 2


def script(name: str, rank: int = 0, **options) -> Script:
    """A mistake in a process that has no others: what it draws, and from where, is asked of nobody."""
    usual = {"mode": "ddp", "num_devices": RANKS, "per_device_batch": 10, "epochs": 2, "augment": True, "lr_batch": 80}
    config = resolve(RunConfig(**usual | {"mistake": name} | options), "cpu", 2)
    return make_script(config, SimpleNamespace(topology=topology(rank)), None, name)


def topology(rank: int) -> Topology:
    """Where a rank of two is."""
    return Topology(rank, rank, RANKS, 1, torch.device("cpu"))


def drawn(name: str, rank: int, steps: int) -> np.ndarray:
    """What a rank draws in so many steps: [steps, batch]."""
    made = script(name, rank)
    return np.stack(list(Draws(made.config, made.topology, IMAGES, steps, order=made.order)))


def steps_of_an_epoch(name: str) -> int:
    """Whole steps of an epoch by the script's own reckoning."""
    return script(name).epoch_images(IMAGES) // (10 * RANKS)


def test_a_mistake_that_overrides_no_decision_is_not_taken_for_made(monkeypatch):
    """After a decision has another name, say: its record would say that the mistake was made."""
    renamed = dataclasses.replace(MISTAKES["whole-data"], overrides={"images_of_an_epoch": lambda script, count: count})
    monkeypatch.setitem(MISTAKES, "whole-data", renamed)
    with pytest.raises(AttributeError, match="images_of_an_epoch"):
        script("whole-data")


def test_every_lab_has_a_primary_measure_with_a_direction_and_overrides_decisions_alone():
    for mistake in MISTAKES.values():
        for device in ("cpu", "cuda"):
            assert mistake.lab.measures_on(device)[0].moves in ("up", "down"), mistake.name
        assert all(callable(getattr(Script, decision)) for decision in mistake.overrides), mistake.name


def test_nothing_is_changed_where_no_mistake_is_made():
    right = script("none")
    batches = [np.concatenate(step) for step in zip(*(drawn("none", rank, 5) for rank in (0, 1)), strict=True)]
    assert right.epoch_images(IMAGES) == IMAGES and right.recipe() is right.config and right.seen() == {}
    assert sorted(np.concatenate(batches)) == sorted(right.order(IMAGES, 0, 0)[:100])


def test_every_rank_that_reads_everything_walks_an_order_of_its_own():
    own = [drawn("whole-data", rank, 10).ravel() for rank in (0, 1)]
    assert script("whole-data").epoch_images(IMAGES) == RANKS * IMAGES
    assert all(len(set(draws.tolist())) == 100 for draws in own)
    assert not np.array_equal(*own) and len(set(own[0]) & set(own[1])) > 90


def test_without_set_epoch_the_second_epoch_is_the_first_again():
    draws = np.stack([drawn("no-reshuffle", rank, 11) for rank in (0, 1)], axis=2).reshape(-1)
    assert np.array_equal(draws[:103], draws[103:206] - IMAGES)


def test_what_fills_no_batch_is_lost_in_every_epoch():
    steps = steps_of_an_epoch("lost-remainder")
    both = [drawn("lost-remainder", rank, 3 * steps) % IMAGES for rank in (0, 1)]
    seen = set(np.concatenate(both).ravel().tolist())
    assert steps == 5 and len(seen) == 100 and not seen & {50, 51, 102} - {51}
    assert set(both[0].ravel()) == set(range(50)) and set(both[1].ravel()) == set(range(51, 101))
    assert not np.array_equal(both[0][:steps], both[0][steps : 2 * steps])  # shuffled within the shard


def test_a_shard_that_fills_no_batch_is_refused():
    with pytest.raises(UserError, match="leaves no example"):
        script("lost-remainder", per_device_batch=60).epoch_images(IMAGES)


def test_the_kth_images_of_all_ranks_get_the_same_crop():
    digits = Digits(8, train=True, augment=True)
    right = [digits.augmentation_seeds(np.arange(r, 40, 2)) for r in (0, 1)]
    assert not np.array_equal(*right)
    script("same-augmentation").prepare_data(digits)
    config = script("none").config
    shares = [np.concatenate(list(Draws(config, topology(r), len(digits), 200))) for r in (0, 1)]
    seeds = [digits.augmentation_seeds(draws) for draws in shares]
    assert np.array_equal(*seeds) and len(set(seeds[0].tolist())) == len(seeds[0])  # over several epochs


def test_augmentation_behind_a_slow_storage_is_reached():
    digits = Digits(8, train=True, augment=True)
    slow = SlowStorage(digits, 0.0)
    before = slow.augmentation_seeds(np.arange(4))
    script("same-augmentation").prepare_data(slow)
    assert not np.array_equal(before, slow.augmentation_seeds(np.arange(4)))


def test_the_recipe_of_an_lr_that_is_not_scaled():
    assert (script("none").recipe().lr_batch, script("lr-not-scaled").recipe().lr_batch) == (80, None)


def test_the_devices_losses_are_summed_under_dp():
    config = resolve(RunConfig(mode="dp", num_devices=2, per_device_batch=4, mistake="gradient-sum"), "cpu", 2)
    mode = SimpleNamespace(topology=Topology(0, 0, 1, 2, torch.device("cpu")))
    outputs, labels = torch.randn(8, 5), torch.arange(8) % 5
    workload = load_workload(config, torch.device("cpu"))
    scripts = (make_script(config, mode, workload, name) for name in ("gradient-sum", "none"))
    wrong, right = (made.loss(outputs, labels) for made in scripts)
    assert float(wrong) == pytest.approx(2 * float(right))


def test_whose_a_file_is():
    ranks = [{"buffers": {"mean": torch.full((3,), float(r)), "count": torch.tensor(4)}} for r in (0, 1)]

    def holding(**model) -> str:
        return owner_of({"model": {"count": torch.tensor(4)} | model, "ranks": ranks})

    assert holding(mean=torch.full((3,), 1.0)) == "rank 1"
    assert holding(mean=torch.full((3,), 7.0)) == "no rank"
    assert holding(mean=torch.zeros(3), count=torch.tensor(4)) == "rank 0"
    assert owner_of(None) == "unreadable"


def test_a_truncated_checkpoint_is_unreadable(tmp_path):
    path = tmp_path / "latest.pt"
    torch.save({"model": {}, "ranks": []}, path)
    assert script("many-writers").read_checkpoint(path) == {"model": {}, "ranks": []}
    path.write_bytes(path.read_bytes()[:100])
    assert script("many-writers").read_checkpoint(path) is None


# --- refusals -------------------------------------------------------------------------------------------------------

REFUSED = {
    "whole-data": ({"num_devices": 1}, "several processes"),
    "same-augmentation": ({"augment": False}, "AUGMENT=1"),
    "no-reshuffle": ({"epochs": 1}, "EPOCHS=2 or more"),
    "rank-metrics": ({"epochs": 0}, "EPOCHS"),
    "many-writers": ({"checkpoint": False}, "CHECKPOINT=0"),
    "rank0-collective": ({"mode": "dp"}, "several processes"),
    "lr-not-scaled": ({"lr_batch": 20}, "another global batch"),
    "strict-false": ({}, "PRETRAINED"),
    "gradient-sum": ({"compression": "fp16"}, "COMPRESSION"),
    "lost-remainder": ({"resume": "somewhere"}, "RESUME=somewhere exclude"),
}


@pytest.mark.parametrize("name", INJECTED)
def test_a_mistake_that_cannot_be_made_is_refused_in_a_line(name):
    options, words = REFUSED[name]
    with pytest.raises(UserError, match=words) as refused:
        script(name, **options)
    assert f"INJECT={name}" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("options", [{"mode": "independent"}, {"sync": False}])
def test_a_bound_makes_no_mistakes(options):
    with pytest.raises(UserError, match="needs every rank to train alike"):
        script("gradient-sum", epochs=0, **options)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("no-reshufle", {}, "did you mean no-reshuffle"),
        (None, {}, "or all"),
        ("host-sync", {"mode": "dp"}, "use MODE=ddp or horovod"),
        ("host-sync", {"item_sync": True}, "INJECT"),
        ("host-sync", {"mistake": "whole-data"}, "INJECT belongs to single runs"),
        ("host-sync", {"num_devices": 1}, "GPUS=2 or more"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(name, asked, words):
    usual = {"mode": "ddp", "num_devices": 2}
    with pytest.raises(UserError, match=words):
        list(LAB.plans(Console(quiet=True), RunConfig(**usual | asked), Flags(name=name)))


# --- the report, on made-up records -----------------------------------------------------------------------------------


def lab(name: str, **options) -> Suite:
    """A lab's suite."""
    (found,) = suites_of(records.lab_records(name, **options))
    return found


def result_of(name: str, **options) -> LabResult:
    """A lab's suite, compared."""
    return LAB.result(lab(name, **options))


def test_the_primary_measure_comes_first_with_its_interval():
    result = result_of("no-reshuffle")
    of_images = METRIC.of(WORKLOADS["images"])
    primary, accuracy = result.rows[0], next(row for row in result.rows if row.measure == of_images)
    assert primary.measure == MISTAKES["no-reshuffle"].lab.measures[0] and primary.as_expected
    assert (primary.right, primary.wrong) == (pytest.approx([0.1] * 3), pytest.approx([100.0] * 3))
    assert (primary.low, primary.high) == (pytest.approx(99.9), pytest.approx(99.9))
    assert accuracy.direction == "" and accuracy.low < 0 < accuracy.high
    said = LAB.answer(result)
    assert said[0].startswith(primary.measure.name) and "as expected" in said[0] and "n = 3 seeds" in said[0]
    assert "no effect shown" in said[result.rows.index(accuracy)]


def test_measures_have_the_workloads_words_and_digits():
    measures = [METRIC.of(WORKLOADS[name]) for name in ("images", "text")]
    assert [measure.name for measure in measures] == ["top-1 %, last epoch", "bits per byte, last epoch"]
    assert [format(0.0123, measure.form) for measure in measures] == ["0.01", "0.0123"]


def test_a_direction_that_was_not_seen_is_said():
    result = result_of("no-reshuffle", wrong={"data": {"num_images": 1437, "same_neighbours": 0.001}})
    assert not result.rows[0].as_expected and "NOT as expected (up)" in LAB.answer(result)[0]


def test_one_run_of_a_time_and_a_disturbed_time_state_no_direction():
    fast = Measure("s", lambda record, observed: None, "up", ratio=True)
    missed = Measure("images never seen", lambda record, observed: None, "up")
    rows = [Row(fast, [1.0], [2.0], 2.0, None, None), Row(fast, [1.0] * 3, [2.0] * 3, 2.0, 1.9, 2.1, disturbed=True),
            Row(fast, [1.0] * 3, [2.0] * 3, 2.0, 1.9, 2.1), Row(missed, [0], [29], 29.0, None, None)]  # fmt: skip
    assert [row.direction for row in rows] == ["", "", "up", "up"]
    assert [bool(row.undecided) for row in rows] == [True, True, False, False]


def test_a_lab_is_fair_but_for_what_it_studies():
    certificate = result_of("no-reshuffle").certificate
    assert certificate.fair and "mistakes made on purpose" in [fact.name for fact in certificate.inherent]


def test_any_other_comparison_with_a_mistake_is_not_fair():
    programs = {mode: options | {"mistake": "gradient-sum"} for mode, options in records.compare_programs().items()
                if mode in ("ddp", "horovod")}  # fmt: skip
    facts = certify(records_of(records.suite("compare", programs, rounds=2))).differences
    assert [fact.name for fact in facts] == ["mistakes made on purpose"]


def test_a_run_that_hung_is_a_result():
    where = [
        {"file": "bench/training/epochs.py", "line": 7 + rank, "function": "f", "collective": True} for rank in (0, 1)
    ]
    result = result_of("rank0-collective", hung=where)
    assert result.rows[0].sides == ["0", "1"] and result.rows[0].as_expected
    assert any("27.5 s" in line and "TIMEOUT=900" in line for line in LAB.answer(result))
    assert "epochs.py:8 (f) in a collective" in text_of(LAB.figures(result)["lab"])
    assert "Failed runs" not in page([lab("rank0-collective", hung=where)], [], [])


@pytest.mark.parametrize("name", MISTAKES)
def test_the_museum_has_a_card_per_mistake_picture_first(name):
    where = [None, None] if name == "rank0-collective" else None
    text = page([lab(name, hung=where)], [], [])
    card = text.partition('<article class="card"')[2].partition("</article>")[0]
    assert card.index("<svg") < card.index(f"<h3>{name}: ") < card.index("Remedy")
    assert "make mistake demo GPUS=2 SEEDS=3" in card and f"NAME={name}" in card and "Made on purpose" in card


def test_the_museum_is_in_its_own_order(monkeypatch):
    monkeypatch.setattr(Study, "figures", lambda self, result: {})
    names = ["lost-remainder", "no-reshuffle", "unsynced-init"]
    text = page([lab(name, number=f"000{i}") for i, name in enumerate(names, 1)], [], [])
    places = [text.index(f"<h3>{name}: ") for name in reversed(names)]
    assert places == sorted(places) and text.count("<article") == 3


def test_a_single_run_with_a_mistake_is_red_on_the_page():
    text = page([], [records.record("ddp", mistake="whole-data")], [])
    assert 'class="flag">' in text and MISTAKES["whole-data"].warning in text


def test_the_console_says_what_a_person_would_see():
    suite, console = lab("no-reshuffle"), Console(width=250)
    with console.capture() as capture:
        print_result(console, LAB, suite, LAB.result(suite))
    mistake, said = MISTAKES["no-reshuffle"], in_one_line(capture.get())
    measures = [measure.of(WORKLOADS["images"]).name for measure in mistake.lab.measures]
    assert all(words in said for words in (mistake.lab.seen, mistake.consequence, mistake.remedy, *measures))
