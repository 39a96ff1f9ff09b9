"""The GPUs on which processes have CUDA contexts, with a stub in torch's place: there may be no GPU here."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.mistakes.extra_context import extra_context
from bench.observe.loads import Loads
from bench.observe.memory import Contexts, contexts_of


class Placed:
    """A model whose parameters are on some GPUs."""

    def __init__(self, *indices: int):
        self.tensors = [SimpleNamespace(is_cuda=True, device=torch.device("cuda", index)) for index in indices]

    def parameters(self):
        return iter(self.tensors)

    def buffers(self):
        return iter(())


def part(monkeypatch, own, contexts_on, current=0, loaded=(), gpus=2):
    """What a rank leaves, of a machine with some GPUs."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{index}"))
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index in contexts_on, raising=False)
    loads = SimpleNamespace(loads=SimpleNamespace(devices=set(loaded)))
    watch = SimpleNamespace(model=Placed(*own), probe=lambda kind: loads)
    return Contexts(watch).part()["contexts"]


def said(*parts) -> str | None:
    """What is found of these ranks."""
    return extra_context({"contexts": contexts_of(list(parts))})


def test_each_rank_on_its_own_gpu_is_right(monkeypatch):
    assert said(part(monkeypatch, [0], {0}), part(monkeypatch, [1], {1}, current=1)) is None
    both = part(monkeypatch, [0, 1], {0, 1})  # parts of a model on two GPUs
    assert both["extra"] == [] and said(both) is None


@pytest.mark.parametrize(("state", "words"), [
    ({"loaded": [0], "current": 1}, "torch.load put tensors there"),
    ({"current": 0}, "it is torch's current device"),
    ({"current": 1}, "rank 1 trains on cuda:1, and has a CUDA context on cuda:0, too"),
])  # fmt: skip
def test_a_context_on_the_gpu_of_another_rank_is_found_with_its_cause(monkeypatch, state, words):
    assert words in said(part(monkeypatch, [0], {0}), part(monkeypatch, [1], {0, 1}, **state))


def test_models_of_two_ranks_on_one_gpu_of_two_are_found(monkeypatch):
    ranks = [part(monkeypatch, [0], {0}) for _ in range(2)]
    assert "the models of ranks 0, 1 are on one GPU, and the machine has others" in said(*ranks)
    assert said(*[part(monkeypatch, [0], {0}, gpus=1) for _ in range(2)]) is None  # each sees its own, or there is one


def test_without_a_gpu_there_is_nothing_to_see():
    assert Contexts(SimpleNamespace(model=nn.Linear(1, 1), probe=None)).part() == {}


def test_where_torch_load_puts_tensors_is_noted():
    loads = Loads()
    tensor = torch.ones(1)
    loads.reading((None,), {})({"w": tensor})
    loads.close()
    assert loads.devices == set()
