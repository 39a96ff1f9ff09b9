"""A Watch in a user's own script: what is wrong is found, what is right is not, and the training stays the same."""

import json
import os
import subprocess
import sys

import pytest

from bench.mistakes import MISTAKES
from tests.runs import ROOT, needs_horovod

SCRIPT = ROOT / "tests" / "multiprocess" / "watched.py"
# A hang is found by whoever started the run, and a lost remainder has a scenario of its own.
TOGETHER = [name for name in MISTAKES if name not in ("rank0-collective", "lost-remainder")]
LAUNCHERS = {
    "ddp": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "horovod": [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2",
                "--disable-cache", sys.executable],
}  # fmt: skip


@pytest.fixture(scope="module", params=["ddp", pytest.param("horovod", marks=needs_horovod)])
def watched(request, tmp_path_factory):
    """Every scenario under one launcher: what each rank found, and what rank 0 printed."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [*LAUNCHERS[request.param], str(SCRIPT), str(folder)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)], done.stdout


@pytest.mark.parametrize("scenario", ["right", "right, workers"])
def test_a_right_script_has_no_finding(watched, scenario):
    ranks, _ = watched
    assert [rank[scenario][0] for rank in ranks] == [[], []]


@pytest.mark.parametrize("scenario", ["right", "right, workers"])
def test_a_watch_changes_no_bit_of_the_weights(watched, scenario):
    for rank in watched[0]:
        assert rank[scenario][1] == rank[f"{scenario}, unwatched"][1]


def test_every_mistake_of_a_wrong_script_is_found_on_every_rank(watched):
    ranks, printed = watched
    assert [rank["wrong"][0] for rank in ranks] == [TOGETHER, TOGETHER]
    for name in TOGETHER:
        assert f"{name}: {MISTAKES[name].title}" in printed
        assert MISTAKES[name].remedy in printed


def test_shards_that_lose_images_and_a_slow_loader_are_found(watched):
    assert [rank["lost"][0] for rank in watched[0]] == [["lost-remainder", "loader-starvation"]] * 2
