"""`bench mistake unsynced-init` as a person runs it, and REPLICAS=1 of single runs, at the smallest size."""

import pytest

from bench.formulas import replica_distance_factors
from bench.record.read import find_records
from bench.record.view import Record
from tests.multiprocess.ranks import each
from tests.runs import TINY, flags, needs_horovod

SIZE = TINY | {"device": "cpu", "image_size": 8, "epochs": 1}
ALIKE = ("ddp", "horovod")
APART = ("ddp unsynced", "ddp unsynced own buffers", "horovod unsynced")


@pytest.fixture(scope="module")
def suite(tmp_path_factory, ranks):
    """One seed of all programs, six steps each: what was said, the suite's folder, and program -> record."""
    out = tmp_path_factory.mktemp("unsynced")
    result = ranks.bench("mistake", "unsynced-init", *flags(**SIZE, batch=120, seeds=1, seed=3, out=out)).ok()
    (folder,) = out.iterdir()
    records, refused = find_records(folder)
    assert not refused
    return result, folder, {record.program: record for record in records}


def replicas(record: Record) -> dict:
    """What a record contains about its replicas; only rank 0's part has it."""
    mine, *others = record.samples
    assert not any(part.replicas for part in others)
    return mine.replicas


@needs_horovod
def test_replicas_made_equal_stay_equal_and_the_others_keep_their_distance(suite):
    records = suite[2]
    assert set(records) == {*ALIKE, *APART, "dp"}
    for program in ALIKE:
        assert replicas(records[program])["distance"] == [0.0] * 7, program
    starts = {replicas(records[program])["distance"][0] for program in APART}
    assert len(starts) == 1 and min(starts) > 1  # the same two ranks' weights in every program
    for program in APART:
        seen = replicas(records[program])
        assert seen["steps"] == list(range(7)) and seen["theory"] == [1.0] * 7
        assert seen["distance"] == pytest.approx([seen["distance"][0]] * 7, rel=1e-4), program
        assert list(seen["by_layer"]) == ["conv1", "bn1", "layer1", "layer2", "fc"]
    assert replicas(records["dp"])["distance"] == [] and len(replicas(records["dp"])["ranks_top1"][-1]) == 1


@needs_horovod
def test_every_rank_is_judged_alone_on_the_whole_validation_set(suite):
    records = suite[2]
    for program in (*ALIKE, *APART):
        seen = replicas(records[program])
        assert [len(ranks) for ranks in seen["ranks_top1"]] == [2] == [len(ranks) for ranks in seen["ranks_loss"]]
        hits = [360 * top1 for top1 in seen["ranks_top1"][0]]
        assert hits == pytest.approx([round(x) for x in hits], abs=1e-6)
        assert set(seen["average"]) == {"averaged_buffers", "estimated_statistics"}
    for program in (*ALIKE, "dp"):  # the model that validation shares out is rank 0's
        assert replicas(records[program])["ranks_top1"][-1][0] == pytest.approx(records[program].top1)
    first, second = replicas(records["ddp unsynced"])["ranks_loss"][0]
    assert first != second


@needs_horovod
def test_the_command_fixes_its_margin_first_and_leaves_pictures_and_a_page(suite):
    result, folder, _ = suite
    assert 0 < result.stdout.index("±1 percentage point") < result.stdout.index("round 1 of 1")
    names = {f"{name}.svg" for name in ("replica-distance", "accuracy-by-rank", "seed-pairs")}
    assert {path.name for path in (folder / "pictures").iterdir()} == names
    assert (folder / "report.html").exists() and not list(folder.rglob("*.pt"))


def test_three_replicas_come_together_as_the_theory_says(tmp_path, ranks):
    """With decay, without momentum and without batch norm: nothing to estimate again."""
    recipe = {"gpus": 3, "batch": 80, "init_sync": 0, "replicas": 1, "norm": "group", "checkpoint": 0, "seed": 4}
    recipe |= {"lr": 0.1, "weight_decay": 0.5, "momentum": 0, "lr_warmup_steps": 3}
    result = ranks.run(tmp_path, **SIZE | recipe, mode="ddp").ok()
    seen = replicas(result.loaded)
    expected = replica_distance_factors(seen["lr"][1:], "sgd", 0.5, 0.0, False)
    assert len(set(seen["lr"])) > 3 and expected[-1] < 0.85  # a warm-up, and a decay that is seen
    assert seen["theory"] == pytest.approx(expected, rel=1e-5)
    assert [x / seen["distance"][0] for x in seen["distance"]] == pytest.approx(expected, rel=1e-4)
    assert list(seen["average"]) == ["averaged_buffers"] and len(seen["ranks_top1"][0]) == 3
    assert len(set(each(result, "initial_weights_sha256"))) == 3
