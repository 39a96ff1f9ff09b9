"""What real runs are observed to do: right ones have no finding, and what is wrong on purpose is found."""

import pytest

from bench import mistakes
from bench.errors import ExitCode
from tests.runs import NARROW, needs_horovod

# The smallest training that has epochs: the digits' 1437 images in 23 steps.
TRAINING = {"gpus": 2, "batch": 32, "warmup": 4, "steps": None, "watch": 1}
# A few steps, of a network that takes much longer for one than the loader does, on a busy machine, too.
SHORT = NARROW | {"steps": 4}


@pytest.fixture(scope="module")
def observed(tmp_path_factory, ranks):
    """A function: the result of a run with WATCH=1 and what was observed."""

    def run(**options):
        result = ranks.run(tmp_path_factory.mktemp("run"), **TRAINING | options).ok()
        return result, result.loaded.observed

    return run


@pytest.mark.parametrize("options", [
    {"mode": "dp"},
    pytest.param({"mode": "horovod", "compression": "fp16"}, marks=needs_horovod),
    {"mode": "independent"},
], ids=lambda options: options["mode"])  # fmt: skip
def test_a_right_run_has_no_finding(observed, options):
    _, seen = observed(**options | SHORT)
    assert mistakes.find(seen) == []
    if options["mode"] == "independent":  # a bound shows which replicas drift
        assert len(set(seen["start"]["parameters"])) == 2 and not seen["exchanges"]
        assert [f.name for f in mistakes.find(seen | {"exchanges": True})] == ["unsynced-init", "no-exchange"]


def test_a_watched_training_is_observed_in_every_part(observed):
    options = {"epochs": 2, "accumulate": 2, "batch": 16, "lr_batch": 32, "loss_guard": 5, "clip_norm": 1}
    result, seen = observed(mode="ddp", **options)
    assert mistakes.find(seen) == [] and result.stdout.splitlines()[-1].startswith("record: ")
    assert mistakes.unobserved(seen) == ["same-augmentation"]
    data = seen["data"]
    assert [epoch["draws"] for epoch in data["epochs"]] == [23 * 64, 22 * 64]  # 1437 images end within a step
    assert data["never_seen"] == 0 and data["shared_in_a_step"] == 0 and data["same_neighbours"] < 0.02
    assert seen["gradient"]["over_mean"] == pytest.approx(1, abs=1e-5) and seen["gradient"]["same_on_all_ranks"]
    assert seen["learning_rate"] == {"used": 0.1, "meant": 0.1, "global_batch": 64, "for_batch": 32}
    assert seen["reported"]["images"] == [[360, 360]] * 2 and seen["reported"]["val_images"] == 360
    assert set(map(tuple, seen["writers"].values())) == {(0,)}
    assert seen["host_syncs"] == [] and seen["norm"]["images"] == 16


def test_what_is_wrong_on_purpose_is_found_and_said(observed, ranks):
    result, seen = observed(mode="ddp", epochs=1, batch=7, init_sync=0, item_sync=1)
    names = ["unsynced-init", "local-norm", "host-sync"]
    found = mistakes.find(seen)
    assert [finding.name for finding in found] == names
    assert [bool(finding.question) for finding in found] == [False, False, True]  # a CPU does not wait for itself
    assert all(f"{name}: " in result.stdout for name in names)
    assert seen["host_syncs"][0]["where"].startswith("hooks.py:") and seen["host_syncs"][0]["per_step"] == 1
    checked = ranks.bench("mistake", "check", result.out)
    assert checked.code == ExitCode.FOUND and all(name in checked.stdout for name in names)
