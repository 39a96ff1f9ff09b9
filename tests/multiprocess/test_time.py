"""`bench time` on scripts that know nothing of it: their figures, their mistakes, and that they compute the same."""

import json
import signal
import sys

import psutil
import pytest

from bench.foreign.record import find
from bench.process.tree import MARK, Tree, is_running
from tests import runs
from tests.runs import left_behind, needs_horovod

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
sampler = DistributedSampler(data)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    if "reshuffle" in sys.argv:
        sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
total = sum(p.double().sum().item() for p in model.parameters())
if dist.get_rank() == 0:
    print(f"weights {total!r} random {torch.rand(1).item()!r}")
"""
ALONE = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(3, 2)).sum().backward()
    optimizer.step()
"""
# Of two ranks under torchrun, which train nothing: each starts a process that leaves its session, and says which.
STAYS = """
import subprocess, sys, time
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(f"{sys.argv[1]}/{stray.pid}", "w").close()
time.sleep(600)
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def said_of_weights(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("weights ")]


def test_a_script_under_torchrun_is_timed_with_no_line_of_ours(tmp_path):
    """80 steps of two ranks: 20 of warm-up, three intervals between epochs after them."""
    (script := tmp_path / "train.py").write_text(SCRIPT)
    done = runs.bench("time", "--out", tmp_path / "out", "--warmup=10", "--", *TORCHRUN, script)
    assert done.code == 0, done.stderr
    ((record,), refused) = find(tmp_path / "out")
    assert refused == [] and record.name == "train.py" and record["engine"] == "DistributedDataParallel"
    assert record.world_size == 2 and record.global_batch == 8 and record.topology["batch_from"] == "Watch"
    assert record.step_time["n"] == 40 - 10 - 3  # 8 steps an epoch; the first one after the warm-up is in epoch 1
    assert [part["steps_taken"] for part in record["samples"]] == [40, 40]
    assert [finding.name for finding in record.findings] == ["no-reshuffle"]
    assert "no-reshuffle" in done.stdout and f"record: {record.folder}/foreign.json" in done.stdout.splitlines()[-1]
    assert record.throughput > 0 and 0 < record.wait_share < 1 and record.watch_share > 0
    assert str(tmp_path) not in json.dumps(record.data)  # it says nothing of where it lay


def test_steps_end_a_script_that_would_go_on_for_ever(tmp_path):
    (script := tmp_path / "train.py").write_text(ALONE)
    words = ("--steps=15", "--warmup=5", "--batch=3", "--label=endless", "--watch=0", "--limit=100")
    done = runs.bench("time", "--out", tmp_path / "out", *words, "--", sys.executable, script)
    assert done.code == 0, done.stderr
    ((record,), _) = find(tmp_path / "out")
    assert record.name == "endless" and record.step_time["n"] == 15 and record.global_batch == 3
    assert record["engine"] == "one process" and not record.observed and left_behind(done.pid) == []


@pytest.mark.wide
def test_one_script_on_one_and_on_two_devices_scales(tmp_path):
    (script := tmp_path / "train.py").write_text(SCRIPT)
    sides = tmp_path / "1", tmp_path / "2"
    for side in sides:
        words = (*TORCHRUN[:-1], f"--nproc-per-node={side.name}", script)
        done = runs.bench("time", "--out", side, "--warmup=10", "--", *words)
        assert done.code == 0, done.stderr
    said = runs.bench("diff", *sides)
    assert said.code == 0 and "weak scaling: 4 examples per device" in said.stdout, said.stderr
    assert "2 CPU processes emulate 2 devices" in said.stdout and "differs between" not in said.stdout
    assert runs.bench("diff", *sides, "--bound=5").code == 2


@pytest.mark.wide
def test_nothing_that_a_script_computes_is_changed(tmp_path):
    (script := tmp_path / "train.py").write_text(SCRIPT)
    timed = runs.bench("time", "--out", tmp_path / "out", "--warmup=10", "--", *TORCHRUN, script)
    plain = runs.finish(runs.start(*TORCHRUN[3:], script, module=TORCHRUN[2]))
    assert said_of_weights(timed.stdout) == said_of_weights(plain.stdout) != []


@pytest.mark.parametrize("how", ["LIMIT", "SIGTERM", "SIGKILL", "the tree around it"])
def test_nothing_is_left_of_a_script_that_does_not_end(tmp_path, how):
    """Whether it is over LIMIT, or `bench time` is told to end, killed, or ended with what has started it."""
    (script := tmp_path / "train.py").write_text(STAYS)
    (pids := tmp_path / "pids").mkdir()
    command = [*TORCHRUN, script, pids]
    if how == "LIMIT":  # what is there within seconds also on a busy machine
        command = ["sh", "-c", f"for n in 1 2; do setsid sleep 600 & touch {pids}/$!; done; sleep 600"]
    words = ["time", "--out", tmp_path / "out", *(["--limit=3"] if how == "LIMIT" else []), "--", *command]
    with Tree() as outer:
        outer.start([sys.executable, "-m", "bench", *map(str, words)], cwd=runs.ROOT)
        runs.wait_for(lambda: len(list(pids.iterdir())) == 2 or outer.wait(0) is not None, "the strays")
        strays = [psutil.Process(int(path.name)) for path in pids.iterdir()]
        marks = [{name for name, value in each.environ().items() if outer.token in value} for each in strays]
        if how.startswith("SIG"):
            outer.process.send_signal(getattr(signal, how))
        if how == "the tree around it":
            outer.end()
        code = runs.wait_for(lambda: outer.wait(0), "its end")
        runs.wait_for(lambda: not any(map(is_running, strays)), "the end of what it started", 30)
        assert marks == [{MARK}] * 2
        expected = {"LIMIT": 1, "SIGTERM": 130, "SIGKILL": -signal.SIGKILL, "the tree around it": 130}
        assert code == expected[how] and find(tmp_path / "out") == ([], [])


@pytest.mark.wide
@needs_horovod
def test_a_script_under_horovodrun_that_watches_itself(tmp_path):
    text = SCRIPT.replace('dist.init_process_group("gloo")', "import horovod.torch as hvd\nhvd.init()")
    text = text.replace("DistributedSampler(data)", "DistributedSampler(data, hvd.size(), hvd.rank())")
    text = text.replace("nn.parallel.DistributedDataParallel(nn.Linear(8, 4))", "nn.Linear(8, 4)")
    text = text.replace("lr=0.1)", "lr=0.1)\n"
                        "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n"
                        "from bench.observe import Watch\nwatch = Watch(model, optimizer)", 1)  # fmt: skip
    text = text.replace("in DataLoader(data, batch_size=4, sampler=sampler):",
                        "in watch(DataLoader(data, batch_size=4, sampler=sampler)):")  # fmt: skip
    text = text.replace("total = ", "watch.report()\ntotal = ").replace("dist.get_rank()", "hvd.rank()")
    (script := tmp_path / "train.py").write_text(text)
    horovodrun = (sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2",
                  "--disable-cache", sys.executable)  # fmt: skip
    done = runs.bench("time", "--out", tmp_path / "out", "--warmup=10", "--", *horovodrun, script, "reshuffle")
    assert done.code == 0, done.stderr
    ((record,), _) = find(tmp_path / "out")
    assert record["engine"] == "Horovod" and record.world_size == 2 and record.global_batch == 8
    assert record.observed["world_size"] == 2 and record.findings == []
    assert "known mistakes found" in done.stdout  # by the script's own Watch
