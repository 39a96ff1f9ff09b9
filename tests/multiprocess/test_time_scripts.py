"""`bench time` on scripts of many kinds: it changes nothing of them, and finds what there is to find in each."""

import subprocess
import sys

import pytest

from bench.foreign.record import ForeignRecord, find
from tests import runs
from tests.runs import needs_horovod

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = (sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2",
              "--disable-cache", sys.executable)  # fmt: skip
HEAD = """
import os, queue, sys, threading, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
CE, DDP = nn.functional.cross_entropy, nn.parallel.DistributedDataParallel
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
"""
LOADERS = (
    HEAD
    + """
class Halves(DataLoader):
    def __iter__(self):
        for inputs, targets in super().__iter__():
            yield inputs / 2, targets

class Twice(Halves):
    def __iter__(self):
        yield from super().__iter__()

class Wraps(DataLoader):
    def __iter__(self):
        self.batches = super().__iter__()
        assert isinstance(self.batches, torch.utils.data.dataloader._BaseDataLoaderIter)
        return self

    def __next__(self):
        inputs, targets = next(self.batches)
        return inputs / 2, targets

class Ahead(DataLoader):
    def __iter__(self):
        ahead, batches = queue.Queue(2), super().__iter__()
        threading.Thread(target=lambda: [ahead.put(batch) for batch in (*batches, None)], daemon=True).start()
        while (batch := ahead.get()) is not None:
            yield batch

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
for kind, workers in ((Halves, 0), (Twice, 0), (Wraps, 0), (Ahead, 0), (Endless, 0), (Endless, 1), (DataLoader, 1)):
    loader = kind(data, 4, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            CE(model(inputs), targets).backward()
            optimizer.step()
    print("weights", kind.__name__, workers, *(p.double().sum().item() for p in model.parameters()))
"""
)
COMPILED = (
    HEAD
    + """
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
for epoch in range(2):
    for inputs, targets in loader:
        step(inputs, targets)
if dist.get_rank() == 0:
    counters = torch._dynamo.utils.counters
    print("weights", *(p.double().sum().item() for p in model.parameters()))
    print("graphs", dict(counters["stats"]), sum(counters["graph_break"].values()))
"""
)
HOROVOD = (
    HEAD
    + """
import horovod.torch as hvd
hvd.init()
sampler = DistributedSampler(data, hvd.size(), hvd.rank())
loader = DataLoader(data, 4, sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), 0)
if "after" not in sys.argv:
    hvd.broadcast_optimizer_state(optimizer, 0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
if "after" in sys.argv:
    hvd.broadcast_optimizer_state(optimizer, 0)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        CE(model(inputs), targets).backward()
        optimizer.step()
"""
)
PHASES = (
    HEAD
    + """
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
)
NO_LOADER = (
    HEAD
    + """
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DDP(nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
draw = lambda: torch.randint(64, (4,))
for step in range(30):
    if step % 10 == 0 and dist.get_rank() == 0:
        with torch.no_grad():
            [model.module(x[draw()]) for _ in range(5)]
    for last in (False, True):
        rows = draw()
        if "late" not in sys.argv:
            model.require_backward_grad_sync = last
        loss = CE(model(x[rows]), data.tensors[1][rows])
        model.require_backward_grad_sync = last
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
GAN = (
    HEAD
    + """
dist.init_process_group("gloo")
with open("words.txt", "w") as file:
    file.write("made by every rank")
torch.save(x, "x.pt")
torch.manual_seed(dist.get_rank())
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
g, d = DDP(nn.Linear(4, 8)), DDP(nn.Linear(8, 1))
BCE = nn.functional.binary_cross_entropy_with_logits
of_g, of_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for epoch in range(2):
    for real, _ in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = g(torch.randn(len(real), 4))
        of_d.zero_grad()
        (BCE(d(real), ones) + BCE(d(fake.detach()), zeros)).backward()
        of_d.step()
        of_g.zero_grad()
        BCE(d(fake), ones).backward()
        of_g.step()
"""
)
BROKEN = (
    HEAD
    + """
class Broken(TensorDataset):
    def __getitem__(self, index):
        if dist.get_rank() == 1 and index == 31:
            raise OSError("the image is truncated")
        return super().__getitem__(index)

dist.init_process_group("gloo")
data = Broken(*data.tensors)
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
model = DDP(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    CE(model(inputs), targets).backward()
    optimizer.step()
"""
)
SEEDED = (
    HEAD
    + """
import random, numpy as np
KIND, FORM, ADDED = sys.argv[1], sys.argv[2], "epoch" in sys.argv
dist.init_process_group("gloo")
rank, now = dist.get_rank(), 0

def seed(worker):
    number = 100 * rank + worker + (10_000 * now if ADDED else 0)
    random.seed(number), np.random.seed(number)
    twisters["RandomState"].seed(number)
    twisters["Generator"] = np.random.Generator(np.random.MT19937(number))

twisters = {"random": random, "numpy": np.random, "RandomState": np.random.RandomState(rank)}
seed(0)

class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.twisters = twisters

    def __len__(self):
        return len(data)

    def __getitem__(self, index):
        return data[index][0] + self.twisters[KIND].random(), data[index][1]

sampler = DistributedSampler(data)
workers = {"num_workers": 2, "worker_init_fn": seed} if FORM == "workers" else {}
loader = DataLoader(Noisy(), 4, sampler=sampler, **workers)
model = DDP(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for now in range(3):
    sampler.set_epoch(now)
    if FORM == "process":
        seed(0)
    for inputs, targets in loader:
        optimizer.zero_grad()
        CE(model(inputs.float()), targets).backward()
        optimizer.step()
"""
)


def timed(folder, text: str, *launcher, words=(), options=()) -> tuple[runs.Result, ForeignRecord | None]:
    """What ``bench time`` said of a script, and its record."""
    (script := folder / "train.py").write_text(text)
    done = runs.bench("time", "--out", folder / "out", "--warmup=3", *options, "--", *launcher, script, *words)
    found, refused = find(folder / "out")
    assert refused == []
    assert not [why for record in found for why in record["unheard"].values() if "probe failed" in why]
    return done, (found[0] if found else None)


def weights(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith(("weights ", "graphs ")))


def names(record: ForeignRecord) -> list[str]:
    return [finding.name for finding in record.findings if not finding.question]


@pytest.mark.parametrize("options", [(), pytest.param(("--watch=0",), marks=pytest.mark.wide)])
def test_loaders_that_call_their_base_class_give_the_same_batches(options, tmp_path):
    done, record = timed(tmp_path, LOADERS, sys.executable, options=options)
    assert done.code == 0 and record.step_time["n"] > 20, done.stderr
    plain = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, timeout=200)
    assert len(weights(plain.stdout)) == 7 and weights(done.stdout) == weights(plain.stdout)


@pytest.mark.parametrize(
    "order", ["outer", pytest.param("inner", marks=pytest.mark.wide), pytest.param("step", marks=pytest.mark.wide)]
)
def test_a_compiled_model_is_compiled_as_without_us(order, tmp_path):
    done, record = timed(tmp_path, COMPILED, *TORCHRUN, words=(order,))
    assert done.code == 0 and record["engine"] == "DistributedDataParallel", done.stderr
    assert names(record) == ["no-reshuffle"]  # not host-sync: a batch may lie on the host
    assert record.observed["passes"]["steps"] > 10 and record.observed["passes"]["unsynced"] == 0
    assert not [line for line in done.stderr.splitlines() if "bench" in line]  # no warning about a line of ours
    plain = runs.finish(runs.start(*TORCHRUN[3:], tmp_path / "train.py", order, module=TORCHRUN[2]))
    kept = "weights " if order == "step" else ""  # a compiled step's hooks are another number of graph breaks
    found = [[line for line in weights(each.stdout) if line.startswith(kept)] for each in (done, plain)]
    assert len(found[0]) == 2 - bool(kept) and found[0] == found[1]


@needs_horovod
@pytest.mark.parametrize("order", ["before", pytest.param("after", marks=pytest.mark.wide)])
def test_horovods_step_that_makes_a_state_is_none(order, tmp_path):
    done, record = timed(tmp_path, HOROVOD, *HOROVODRUN, words=(order,))
    assert done.code == 0, done.stderr
    assert record["engine"] == "Horovod" and names(record) == []
    assert [part["steps_taken"] for part in record["samples"]] == [24, 24] and record.step_time["n"] == 24 - 3 - 2


def test_of_several_optimizers_those_count_that_train_the_same_parameters(tmp_path):
    """10 steps of a head, 10 of the whole model, of which the first is another phase's, and 7 of another model."""
    done, record = timed(tmp_path, PHASES, sys.executable)
    assert done.code == 0, done.stderr
    (part,) = record["samples"]
    assert part["steps_taken"] == 10 + 9 and part["other_steps"] == 1 + 7
    assert record.step_time["n"] == 19 - 3 - 1 and "8 of 27 optimizer steps were another optimizer's" in done.stdout


@pytest.mark.parametrize(("words", "found"), [
    ((), []),
    pytest.param(("late",), ["unsynced-accumulation"], marks=pytest.mark.wide),
])  # fmt: skip
def test_without_a_loader_all_is_looked_for_but_the_data(words, found, tmp_path):
    """Rank 0 evaluates every tenth step: these are no steps, and both ranks end after 20."""
    done, record = timed(tmp_path, NO_LOADER, *TORCHRUN, words=words, options=("--steps=20",))
    assert done.code == 0, done.stderr
    assert names(record) == found and "drift" not in record["unheard"]
    assert "walks no DataLoader" in record["unheard"]["no-reshuffle"]
    assert [part["steps_taken"] for part in record["samples"]] == [23, 23]
    assert record.step_time["n"] == 18 and [len(part["between_s"]) for part in record["samples"]] == [2, 0]


def test_all_models_are_looked_at_and_files_from_the_start(tmp_path):
    done, record = timed(tmp_path, "import os; os.chdir(os.path.dirname(__file__))\n" + GAN, *TORCHRUN)
    assert done.code == 0, done.stderr
    assert names(record) == ["no-reshuffle", "many-writers"] and not {"drift", "no-exchange"} & set(record["unheard"])
    assert sum(len(ranks) == 2 for ranks in record.observed["writers"].values()) == 2


@pytest.mark.parametrize(("kind", "form"), [
    ("random", "workers"), ("numpy", "process"),
    *(pytest.param(kind, form, marks=pytest.mark.wide) for kind, form in (
        ("random", "process"), ("numpy", "workers"), ("RandomState", "workers"), ("RandomState", "process"),
        ("Generator", "workers"), ("Generator", "process"),
    )),
])  # fmt: skip
def test_augmentation_that_each_epoch_seeds_alike_repeats_itself(kind, form, tmp_path):
    for words, found in (((), ["same-augmentation"]), (("epoch",), [])):
        (folder := tmp_path / "-".join(("seeded", *words))).mkdir()
        done, record = timed(folder, SEEDED, *TORCHRUN, words=(kind, form, *words))
        assert done.code == 0, done.stderr
        assert [name for name in names(record) if name == "same-augmentation"] == found
        assert "same-augmentation" not in record["unheard"]


def test_a_rank_that_fails_is_named_and_not_waited_for(tmp_path):
    done, record = timed(tmp_path, BROKEN, *TORCHRUN, options=("--limit=100",))
    assert done.code != 0 and record is None
    assert "rank 1 (OSError: the image is truncated, after 3 steps)" in done.last_error_line
    assert "known mistakes" not in done.stderr and "nothing has moved" not in done.stderr
