"""Every known mistake made once in a real run, beside a right run: what decides in its lab moves as it is said to.

The runs of one engine share their processes (several_runs.py): a small network, three steps an epoch.
"""

from pathlib import Path

import pytest

from bench.config.options import RunConfig
from bench.mistakes import MISTAKES, confession, wrong
from bench.record.observed import find, observed_of
from bench.studies.lab.result import LABS, hung
from tests.multiprocess.several_runs import folder_of, together
from tests.runs import finish, left_behind, needs_horovod, start_run

RIGHT = {"model": "shufflenet_v2_x0_5", "data": "digits", "image_size": 8, "num_devices": 2, "per_device_batch": 240,
         "epochs": 2, "lr": 0.002, "lr_batch": 48, "augment": True, "watch": True, "timeout": 60.0, "threads": 2,
         "device": "cpu"}  # fmt: skip
SHARED = [name for name in MISTAKES if name not in ("rank0-collective", "strict-false", "local-norm")]
OF_HOROVOD = ("gradient-sum", "many-writers", "unsynced-init")


ALONE_TIMEOUT = 90  # longer than a run takes to start on a busy machine; it is waited for while the others run


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A run whose rank 0 enters a collective alone, started with the module and looked at by its last test."""
    out = tmp_path_factory.mktemp("alone")
    options = {"mode": "ddp", "gpus": 2, "model": "shufflenet_v2_x0_5", "batch": 240, "epochs": 1,
               "timeout": ALONE_TIMEOUT, "mistake": "rank0-collective"}  # fmt: skip
    process = start_run(out, **options)
    yield out, process
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def plan_of(names, folder: Path) -> dict[str, dict]:
    """Name of a run -> its options: one right run, and one of each mistake."""
    runs = {"right": RIGHT} | {name: RIGHT | wrong(name) for name in names if name in SHARED}
    if "strict-false" in names:
        loaded = RIGHT | {"pretrained": str(folder_of(folder, "right") / "latest.pt"), "epochs": 1, "lr": 0.001}
        runs |= {"right strict-false": loaded, "strict-false": loaded | wrong("strict-false")}
    if "local-norm" in names:
        few = RIGHT | {"per_device_batch": 7}
        runs |= {"right local-norm": few | {"norm": "sync", "epochs": 0, "timed_steps": 4},
                 "local-norm": few | wrong("local-norm") | {"epochs": 1}}  # fmt: skip
    return runs


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """``records(mode)``: name of a run -> its record."""
    done = {}

    def get(mode, names):
        if mode not in done:
            folder = tmp_path_factory.mktemp(mode)
            plan = {name: RunConfig(mode=mode, **options) for name, options in plan_of(names, folder).items()}
            done[mode] = {name: result.record for name, result in together(folder, plan).items()}
        return done[mode]

    return get


def moved(found: dict[str, dict], name: str) -> str:
    """Where the figure that decides went, from the right run to the wrong one."""
    read = LABS[name].figures[0].read
    right, mistaken = (read(found[run]) for run in (f"right {name}" if f"right {name}" in found else "right", name))
    return "up" if mistaken > right else "down" if mistaken < right else ""


@pytest.mark.parametrize("name", [name for name in MISTAKES if name not in ("rank0-collective", "local-norm")])
def test_each_mistake_moves_its_figure_as_said(records, name):
    assert moved(records("ddp", MISTAKES), name) == LABS[name].figures[0].moves


def test_a_rank_norm_sees_its_own_images_and_a_synced_one_all(records):
    found = records("ddp", MISTAKES)
    kinds = [found[name]["samples"][0]["facts"]["norm"] for name in ("right local-norm", "local-norm")]
    assert "ReducedBatchNorm2d" in kinds[0] and "ReducedBatchNorm2d" not in kinds[1]


@needs_horovod
@pytest.mark.parametrize("name", OF_HOROVOD)
def test_mistakes_of_horovod_move_their_figures_as_said(records, name):
    assert moved(records("horovod", OF_HOROVOD), name) == LABS[name].figures[0].moves


def test_every_wrong_run_says_so_and_no_right_one_does(records):
    for record in records("ddp", MISTAKES).values():
        made, notes = record["config"]["mistake"], record["topology"]["notes"]
        said = [note for note in notes if "on purpose" in note]
        assert said == ([] if made == "none" else [confession(made)])


def test_every_wrong_run_is_caught_and_no_right_one(records):
    found = records("ddp", MISTAKES)
    names = {name: [finding.name for finding in find(observed_of(record))] for name, record in found.items()}
    assert names == {name: [] if name.startswith("right") else [name] for name in found}


def test_a_file_of_many_writers_is_looked_at(records):
    found = records("ddp", MISTAKES)["many-writers"]
    files = found["samples"][0]["lab"]["files"]
    assert sum(files.values()) == found["config"]["epochs"]  # one checkpoint an epoch
    assert set(files) <= {"rank 0", "rank 1", "a mixture of ranks", "unreadable"}


def test_pretrained_weights_that_were_not_loaded_leave_the_random_ones(records):
    found = records("ddp", MISTAKES)
    start = {name: record["samples"][0]["initial_weights_sha256"] for name, record in found.items()}
    assert start["strict-false"] == start["right"] != start["right strict-false"]


def test_a_collective_that_rank_0_enters_alone_is_ended_and_named(alone):
    out, process = alone
    result = finish(process, out)
    assert result.code == 1 and f"no progress for {ALONE_TIMEOUT} s" in result.last_error_line, result.stderr
    assert "not all ranks entered it" in result.last_error_line
    assert "a mistake made on purpose (MISTAKE=rank0-collective)" in result.stdout
    assert hung(result.record) == 1.0 and result.record["failure"]["after_s"] > ALONE_TIMEOUT
    assert left_behind(result.pid) == []
