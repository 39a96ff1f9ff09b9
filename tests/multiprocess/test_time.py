"""`bench time` on scripts that know nothing of it: their times, their mistakes, and that they compute the same."""

import json
import re
import signal
import subprocess
import sys

import psutil
import pytest

from bench.foreign.record import ForeignRecord, find
from bench.process.tree import MARK, Tree, is_running
from tests import runs
from tests.runs import left_behind, needs_horovod

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = ("-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache", "python")
HEAD = """
import itertools, os, random, sys, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
CE, DDP = nn.functional.cross_entropy, nn.parallel.DistributedDataParallel
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
"""
LOADERS = """
class Halves(DataLoader):
    def __iter__(self):
        for inputs, targets in super().__iter__():
            yield inputs / 2, targets

class Wraps(DataLoader):
    def __iter__(self):
        self.batches = super().__iter__()
        assert isinstance(self.batches, torch.utils.data.dataloader._BaseDataLoaderIter)
        return self

    def __next__(self):
        inputs, targets = next(self.batches)
        return inputs / 2, targets

class Repeats:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Endless(DataLoader):  # as in timm, YOLO and others: its workers are started once
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Repeats(self.batch_sampler))
        self.batches = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.batches)

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for kind, workers in ((Halves, 0), (Wraps, 0), (Endless, 0), (Endless, 1), (DataLoader, 1)):
    loader = kind(data, 4, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            CE(model(inputs), targets).backward()
            optimizer.step()
    print("weights", kind.__name__, workers, *(p.double().sum().item() for p in model.parameters()))
"""
COMPILED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, inputs):
        if inputs.abs().max().item() > 100 or (inputs > 50).any():
            inputs = inputs.clamp(-50, 50)
        return self.layers(inputs)

dist.init_process_group("gloo")
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
compiled = lambda module: torch.compile(module, backend="eager")
model = DDP(Net()) if "step" in sys.argv else DDP(compiled(Net())) if "inner" in sys.argv else compiled(DDP(Net()))
optimizer = torch.optim.Adam(model.parameters())

def step(inputs, targets):
    optimizer.zero_grad()
    CE(model(inputs), targets).backward()
    optimizer.step()

step = compiled(step) if "step" in sys.argv else step
for epoch in range(3):
    for inputs, targets in loader:
        step(inputs, targets)
if dist.get_rank() == 0:
    counters = torch._dynamo.utils.counters
    print("weights", *(p.double().sum().item() for p in model.parameters()), torch.rand(1).item())
    print("graphs", dict(counters["stats"]), sum(counters["graph_break"].values()))
"""
HOROVOD = """
import horovod.torch as hvd
from bench.observe import Watch
hvd.init()
sampler = DistributedSampler(data, hvd.size(), hvd.rank())
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), 0)
if "after" not in sys.argv:
    hvd.broadcast_optimizer_state(optimizer, 0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
if "after" in sys.argv:
    hvd.broadcast_optimizer_state(optimizer, 0)
watch = Watch(model, optimizer)
loader = watch(DataLoader(data, 4, sampler=sampler))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        CE(model(inputs), targets).backward()
        optimizer.step()
watch.report()
"""
PHASES = """
def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        CE(model(x), data.tensors[1]).backward()
        optimizer.step()

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
model = nn.Sequential(body, head)
optimizer = torch.optim.Adam(head.parameters())
for p in head.parameters():
    p.grad = torch.zeros_like(p)
optimizer.step()  # makes the optimizer's state
train(model, optimizer, 10)
optimizer = torch.optim.Adam(model.parameters())
train(model, optimizer, 10)
model = nn.Linear(8, 2)
train(model, torch.optim.Adam(model.parameters()), 7)
"""
NO_LOADER = """
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DDP(nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
draw = lambda: torch.randint(64, (4,))
for step in itertools.count():
    if step % 10 == 0 and dist.get_rank() == 0:
        with torch.no_grad():
            [model.module(x[draw()]) for _ in range(5)]
    for last in (False, True):
        rows = draw()
        model.require_backward_grad_sync = last
        CE(model(x[rows]), data.tensors[1][rows]).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
# Two models and optimizers. Every rank writes the same files, and every epoch seeds its augmentation equally.
GAN = """
os.chdir(os.path.dirname(__file__))
dist.init_process_group("gloo")
with open("words.txt", "w") as file:
    file.write("made by every rank")
torch.save(x, "x.pt")
torch.manual_seed(dist.get_rank())

class Noisy(TensorDataset):
    def __getitem__(self, index):
        if "broken" in sys.argv and dist.get_rank() == 1 and epoch == 1:
            raise OSError("the image is truncated")
        return self.tensors[0][index] + random.random()

loader = DataLoader(Noisy(x), 4, sampler=DistributedSampler(x))
g, d = DDP(nn.Linear(4, 8)), DDP(nn.Linear(8, 1))
BCE = nn.functional.binary_cross_entropy_with_logits
of_g, of_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for epoch in range(3):
    random.seed(dist.get_rank())
    for real in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = g(torch.randn(len(real), 4))
        of_d.zero_grad()
        (BCE(d(real), ones) + BCE(d(fake.detach()), zeros)).backward()
        of_d.step()
        of_g.zero_grad()
        BCE(d(fake), ones).backward()
        of_g.step()
"""


def timed(folder, text: str, *launcher, words=(), options=(), code=0) -> tuple[runs.Result, ForeignRecord | None]:
    """What ``bench time`` said of a script, and its record."""
    (script := folder / "train.py").write_text(HEAD + text)
    command = [sys.executable if word == "python" else word for word in ("python", *launcher, script, *words)]
    done = runs.bench("time", "--out", folder / "out", "--warmup=3", *options, "--", *command)
    found, refused = find(folder / "out")
    assert (done.code, refused) == (code, []), done.stderr
    assert not [why for record in found for why in record["unheard"].values() if "probe failed" in why]
    return done, (found[0] if found else None)


def computed(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith(("weights ", "graphs ")))


def names(record: ForeignRecord) -> list[str]:
    return [finding.name for finding in record.findings if not finding.question]


@pytest.mark.parametrize("order", ["outer", *(pytest.param(o, marks=pytest.mark.wide) for o in ("inner", "step"))])
def test_a_compiled_script_with_no_line_of_ours_computes_the_same(order, tmp_path, copied_python):
    """24 steps of two ranks in three epochs: 3 of warm-up, and two intervals between epochs."""
    done, record = timed(tmp_path, COMPILED, *TORCHRUN, words=(order,))
    assert done.stdout.splitlines()[-1] == f"record: {record.folder}/foreign.json"
    assert record.name == "train.py" and record["engine"] == "DistributedDataParallel"
    assert record.world_size == 2 and record.global_batch == 8 and record.topology["batch_from"] == "Watch"
    assert [part["steps_taken"] for part in record["samples"]] == [24, 24] and record.step_time["n"] == 24 - 3 - 2
    assert record.throughput > 0 and 0 < record.wait_share < 1 and record.watch_share > 0
    assert names(record) == ["no-reshuffle"]  # not host-sync: a batch may lie on the host
    assert record.observed["passes"]["steps"] > 10 and record.observed["passes"]["unsynced"] == 0
    assert str(tmp_path) not in json.dumps(record.data)  # it says nothing of where it lay
    assert not [line for line in done.stderr.splitlines() if "bench" in line]  # no warning about a line of ours
    plain = runs.finish(runs.start(*TORCHRUN[2:], tmp_path / "train.py", order, module=TORCHRUN[1]))
    kept = "weights " if order == "step" else ""  # a compiled step's hooks are another number of graph breaks
    found = [[line for line in computed(each.stdout) if line.startswith(kept)] for each in (done, plain)]
    assert len(found[0]) == 2 - bool(kept) and found[0] == found[1]


def test_loaders_that_call_their_base_class_give_the_same_batches(tmp_path, copied_python):
    done, record = timed(tmp_path, LOADERS)
    assert record.step_time["n"] > 20
    plain = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, timeout=200)
    assert len(computed(plain.stdout)) == 5 and computed(done.stdout) == computed(plain.stdout)


@needs_horovod
@pytest.mark.parametrize("order", ["before", pytest.param("after", marks=pytest.mark.wide)])
def test_a_script_under_horovodrun_that_watches_itself(order, tmp_path, copied_python):
    """The step by which Horovod makes an optimizer's state is not one of the 24."""
    _, record = timed(tmp_path, HOROVOD, *HOROVODRUN, words=(order,))
    assert record["engine"] == "Horovod" and record.world_size == 2 and record.global_batch == 8
    assert record.observed["world_size"] == 2 and record.findings == []
    assert [part["steps_taken"] for part in record["samples"]] == [24, 24] and record.step_time["n"] == 24 - 3 - 2


def test_of_several_optimizers_those_count_that_train_the_same_parameters(tmp_path):
    """10 steps of a head, 10 of the whole model, of which the first is another phase's, and 7 of another model."""
    done, record = timed(tmp_path, PHASES, options=("--batch=64", "--label=phases", "--watch=0"))
    assert record.name == "phases" and record.global_batch == 64 and not record.observed
    (part,) = record["samples"]
    assert part["steps_taken"] == 10 + 9 and part["other_steps"] == 1 + 7
    assert record["engine"] == "one process" and record.step_time["n"] == 19 - 3 - 1 and "8 of 27" in done.stdout


def test_steps_end_a_script_that_would_go_on_for_ever_and_all_is_looked_for_but_the_data(tmp_path, copied_python):
    """Rank 0 evaluates every tenth step: these are not steps, and both ranks end after 20."""
    done, record = timed(tmp_path, NO_LOADER, *TORCHRUN, options=("--steps=20",))
    assert left_behind(done.pid) == []
    assert names(record) == [] and "drift" not in record["unheard"] and "no-reshuffle" in record["unheard"]
    assert [part["steps_taken"] for part in record["samples"]] == [23, 23]
    assert record.step_time["n"] == 18 and [len(part["between_s"]) for part in record["samples"]] == [2, 0]


def test_all_models_and_files_are_looked_at(tmp_path, copied_python):
    _, record = timed(tmp_path, GAN, *TORCHRUN)
    assert sorted(names(record)) == ["many-writers", "no-reshuffle", "same-augmentation"]
    assert not {"drift", "no-exchange"} & set(record["unheard"])
    assert sum(len(ranks) == 2 for ranks in record.observed["writers"].values()) == 2


def test_a_rank_that_fails_is_named_and_not_waited_for(tmp_path, copied_python):
    done, record = timed(tmp_path, GAN, *TORCHRUN, words=("broken",), options=("--limit=100",), code=1)
    assert record is None
    assert re.search(r"rank 1 \(OSError: the image is truncated, after 1 epochs?, 8 steps\)", done.last_error_line)


@pytest.mark.parametrize("how", ["LIMIT", "SIGTERM", "SIGKILL", "the tree around it"])
def test_nothing_is_left_of_a_script_that_does_not_end(tmp_path, how):
    """Whether it is over LIMIT, or `bench time` is interrupted, killed, or ended with what has started it."""
    (pids := tmp_path / "pids").mkdir()
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
