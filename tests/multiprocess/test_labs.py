"""Every known mistake made once in a real run, beside a right run: its primary metric moves as stated. Their ranks are
forked (ranks.py): a small network, three steps an epoch. The one that ends in a hang: test_hangs.py."""

import pytest

from bench.mistakes import MISTAKES, find
from bench.record.view import Record
from tests.runs import needs_horovod

RIGHT = {"data": "digits", "batch": 240, "epochs": 2, "lr": 0.002, "lr_batch": 48, "augment": 1, "watch": 1,
         "timeout": 60, "threads": 2, "gpus": 2}  # fmt: skip
OF_HOROVOD = ("gradient-sum", "many-writers", "unsynced-init")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ranks):
    """``trained(mode, name)``: the record of a run of one mistake, or of "right", or of what is "right" for one."""
    done = {}

    def get(mode: str, name: str) -> Record:
        if (mode, name) not in done:
            options = options_of(name, lambda: get(mode, "right").folder)
            result = ranks.run(tmp_path_factory.mktemp(mode), **RIGHT | options, mode=mode).ok()
            done[mode, name] = result.loaded
        return done[mode, name]

    return get


def options_of(name: str, pretrained) -> dict:
    """What a run has that "right" has not. pretrained: returns the folder of a run to start from."""
    about = name.removeprefix("right ")
    options = {} if name.startswith("right") else dict(MISTAKES[name].wrong)
    if about == "strict-false":
        options |= {"pretrained": f"{pretrained()}/latest.pt", "epochs": 1, "lr": 0.001}
    if name == "right local-norm":
        options |= {"batch": 7, "norm": "sync", "epochs": 0, "steps": 4}
    if name == "local-norm":
        options |= {"batch": 7, "epochs": 1}
    return {key: int(value) if isinstance(value, bool) else value for key, value in options.items()}


RIGHT_RUNS = ["right", "right strict-false", "right local-norm"]
WRONG_RUNS = [name for name in MISTAKES if name != "rank0-collective"]


def right_for(name: str) -> str:
    """The name of the right run beside that of a mistake."""
    return f"right {name}" if f"right {name}" in RIGHT_RUNS else "right"


def moved(trained, mode: str, name: str) -> str:
    """Where the primary measure went, from the right run to the wrong one."""
    read = MISTAKES[name].lab.measures[0].read
    right, wrong = (read(record, record.observed) for record in (trained(mode, right_for(name)), trained(mode, name)))
    return "up" if wrong > right else "down" if wrong < right else ""


@pytest.mark.parametrize("name", RIGHT_RUNS + WRONG_RUNS)
def test_every_mistake_moves_its_measure_says_so_and_is_caught_and_no_right_run_is(trained, name):
    record = trained("ddp", name)
    warnings = {mistake.warning for mistake in MISTAKES.values()}
    made, said = record.config.mistake, [note for note in record.notes if note in warnings]
    assert said == ([] if made == "none" else [MISTAKES[made].warning])
    assert [finding.name for finding in find(record.observed)] == ([] if name in RIGHT_RUNS else [name])
    if name in WRONG_RUNS and name != "local-norm":  # its runs are compared below
        assert moved(trained, "ddp", name) == MISTAKES[name].lab.measures[0].moves


@needs_horovod
@pytest.mark.parametrize("name", OF_HOROVOD)
def test_mistakes_of_horovod_move_their_measures_as_said(trained, name):
    assert moved(trained, "horovod", name) == MISTAKES[name].lab.measures[0].moves


def test_what_mistakes_leave_in_their_records(trained):
    """A rank's norm sees its own images and a synced one all; files of many writers are looked at; weights that were
    not loaded leave the random ones."""
    kinds = [trained("ddp", name).samples[0].facts["norm"] for name in ("right local-norm", "local-norm")]
    assert "ReducedBatchNorm2d" in kinds[0] and "ReducedBatchNorm2d" not in kinds[1]
    record = trained("ddp", "many-writers")
    files = record.samples[0].lab["files"]
    assert sum(files.values()) == record.config.epochs  # one checkpoint an epoch
    assert set(files) <= {"rank 0", "rank 1", "a mixture of ranks", "unreadable"}
    names = ("strict-false", "right", "right strict-false")
    start = {name: trained("ddp", name).samples[0].initial_weights_sha256 for name in names}
    assert start["strict-false"] == start["right"] != start["right strict-false"]
