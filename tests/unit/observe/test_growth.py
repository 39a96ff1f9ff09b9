"""Memory that grows to the end, and memory that only moves."""

import random

import pytest
import torch
from torch import nn

from bench.mistakes.memory_growth import memory_growth
from bench.observe import Watch, memory
from bench.observe.memory import STATM, MemoryGrowth

MIB = 2**20


def judged(within, ends=()) -> bool:
    """Whether memory in MiB after each step, or at the end of each epoch, is asked about."""
    series = [[(step, int(used * MIB)) for step, used in enumerate(each)] for each in (within, ends)]
    found = memory.growth(*series, memory.FEWEST["GPU"])
    if found is None:
        return False
    return memory_growth({"memory": {key: [value] for key, value in found.items()} | {"place": ["GPU"]}}) is not None


noise = random.Random(0)
GROWS = {
    "with every step": [500 + 0.5 * step for step in range(100)],
    "and is collected now and then": [500 + 0.5 * step + 20 * (step % 7) for step in range(100)],
    "with noise": [500 + 0.5 * step + noise.gauss(0, 2) for step in range(200)],
}
MOVES = {
    "flat": [500.0] * 100,
    "up and down": [500 + 20 * (step % 7) for step in range(100)],
    "at first": [500 + min(step, 30) for step in range(100)],
    "a validation in the middle": [500 + 80 * (step > 60) for step in range(100)],
    "a data set that is kept in the first epoch of two": [500 + min(step, 100) for step in range(200)],
    "noise": [500 + noise.gauss(0, 5) for _ in range(200)],
    "by little": [500 + 0.01 * step for step in range(100)],
    "in few steps": [500 + 5 * step for step in range(20)],
}


def test_growth_to_the_end_is_asked_about():
    assert {name for name, series in GROWS.items() if judged(series)} == set(GROWS)
    assert {name for name, series in MOVES.items() if judged(series)} == set()
    assert judged([500.0] * 10, [500, 505, 510, 515, 520, 525]) and not judged([500.0] * 10, [500, 505, 510])
    assert not judged([500.0] * 10, [500, 600, 600, 600, 600, 600])


@pytest.mark.skipif(not STATM.exists(), reason="the memory of a process is read from Linux's /proc")
@pytest.mark.parametrize("kept", [True, False])
def test_graphs_that_are_kept_are_seen(kept):
    model = nn.Sequential(nn.Linear(16, 4096), nn.Tanh(), nn.Linear(4096, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Watch(model, optimizer)
    outputs = []
    for rows in watch([torch.randn(64, 16)] * 90):
        output = model(rows)
        optimizer.zero_grad()
        output.square().mean().backward(retain_graph=True)
        optimizer.step()
        outputs.append(output if kept else output.detach())
    found = watch.report()
    assert [finding.name for finding in found] == ["memory-growth"] * kept
    if kept:
        assert "host memory grew steadily by" in found[0].evidence


def test_where_the_memory_is_not_known_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(memory, "STATM", STATM / "nowhere")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Watch(model, optimizer)
    for rows in watch([torch.randn(4, 2)] * 3):
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()
    assert watch.report() == [] and watch.probe(MemoryGrowth).samples == []
    assert "memory-growth (this system does not tell the memory of a process)" in capsys.readouterr().out
