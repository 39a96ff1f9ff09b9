"""Memory that grows to the end, and GPUs on which processes have CUDA contexts, with a stub in torch's place."""

import random
from types import SimpleNamespace

import torch
from torch import nn

from bench.mistakes.extra_context import extra_context
from bench.mistakes.memory_growth import memory_growth
from bench.observe import memory
from bench.observe.loads import Loads
from bench.observe.memory import Contexts, contexts_of

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


def part(monkeypatch, own, contexts_on, current=0, loaded=(), gpus=2):
    """What a rank leaves, of a machine with some GPUs. own: those of its model's parameters."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{index}"))
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index in contexts_on, raising=False)
    tensors = [SimpleNamespace(is_cuda=True, device=torch.device("cuda", index)) for index in own]
    model = SimpleNamespace(parameters=lambda: iter(tensors), buffers=lambda: iter(()))
    loads = SimpleNamespace(loads=SimpleNamespace(devices=set(loaded)))
    return Contexts(SimpleNamespace(model=model, probe=lambda kind: loads)).part()["contexts"]


def said(*parts) -> str | None:
    """What is found of these ranks."""
    return extra_context({"contexts": contexts_of(list(parts))})


def test_a_rank_on_gpus_of_its_own_is_right(monkeypatch):
    assert said(part(monkeypatch, [0], {0}), part(monkeypatch, [1], {1}, current=1)) is None
    both = part(monkeypatch, [0, 1], {0, 1})  # parts of a model on two GPUs
    assert both["extra"] == [] and said(both) is None
    assert said(*[part(monkeypatch, [0], {0}, gpus=1) for _ in range(2)]) is None  # each sees its own, or there is one
    assert Contexts(SimpleNamespace(model=nn.Linear(1, 1), probe=None)).part() == {}  # without a GPU


def test_a_context_on_the_gpu_of_another_rank_is_found_with_its_cause(monkeypatch):
    causes = [{"loaded": [0], "current": 1}, {"current": 0}, {"current": 1}]
    found = [said(part(monkeypatch, [0], {0}), part(monkeypatch, [1], {0, 1}, **state)) for state in causes]
    assert len(set(found)) == 3 and all("cuda:0" in each for each in found) and "torch.load" in found[0]
    assert "0, 1" in said(*[part(monkeypatch, [0], {0}) for _ in range(2)])  # models of two ranks on one GPU of two


def test_where_torch_load_puts_tensors_is_noted():
    loads = Loads()
    loads.reading((None,), {})({"w": torch.ones(1)})
    loads.close()
    assert loads.devices == set()
