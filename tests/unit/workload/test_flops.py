"""bench/workload/flops.py: the FLOPs of a step, against published numbers and formulas."""

import copy

import pytest
import torch

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.workload import load_workload
from bench.workload.flops import count_flops
from bench.workload.own import OneProcess


def counted(num_outputs: int | None = None, mode: str = "single", **options) -> tuple[dict, list[str]]:
    """What the record gets, and what is said. num_outputs: of images, which are then not loaded."""
    workload = load_workload(resolve(RunConfig(mode=mode, **options), "cpu", 2), torch.device("cpu"))
    train_set, said = None, []
    if num_outputs is None:
        train_set, _ = workload.load(OneProcess(), print)
    else:
        workload.num_outputs = num_outputs
    model = workload.model(workload.config, 0, print)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    facts = count_flops(workload, model, train_set, said.append)
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert same and all(p.grad is None for p in model.parameters()) and torch.equal(random, torch.get_rng_state())
    return facts, said


def test_resnet50_at_224_pixels_has_the_published_flops():
    """4.09 GMAC in its forward pass (torchvision's table); the backward pass has twice as many, but that the first
    layer's input gets no gradient."""
    macs, first_layer = 4.09e9, 112 * 112 * 64 * 3 * 7 * 7
    facts, said = counted(1000, model="resnet50", data="synthetic", image_size=224)
    assert facts["flops_per_example"] == pytest.approx(3 * 2 * macs - 2 * first_layer, rel=2e-3) and not said
    few, _ = counted(1000, model="resnet18", data="synthetic", image_size=224, train_only="fc*")
    assert few["flops_per_example"] == pytest.approx(2 * 1.814e9, rel=2e-3)  # forward alone
    norm, _ = counted(1000, model="resnet18", data="synthetic", image_size=224, train_only="bn1*")  # and to the first
    assert norm["flops_per_example"] == pytest.approx(2 * 2 * 1.814e9 - 2 * first_layer, rel=2e-3)


def test_gpt_has_six_flops_per_weight_and_token_and_those_of_attention():
    """6 N + 12 layers x width x context (Chowdhery et al. 2022, appendix B); N: the weights of matrix products."""
    layers, width, context = 2, 32, 16
    facts, _ = counted(model="gpt", layers=layers, width=width, heads=2, context=context)
    blocks, attention = 12 * layers * width**2, 12 * layers * width * context
    assert facts["flops_per_example"] == context * (6 * (blocks + 256 * width) + attention)
    assert "hardware_flops_per_example" not in facts
    # Each block's forward pass once more, but its last product, of which nothing is needed.
    again, _ = counted(model="gpt", layers=layers, width=width, heads=2, context=context, activation_checkpointing=True)
    assert again["flops_per_example"] == facts["flops_per_example"]
    more = again["hardware_flops_per_example"] - facts["flops_per_example"]
    assert more == context * (2 * (blocks - 4 * layers * width**2) + attention / 3)


OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 8), nn.Linear(8, outputs)
    def forward(self, x):
        places = torch.arange(8)  # without the device of its input
        return self.outer(self.inner(x) + places)
def build(outputs):
    return Net(outputs)
def datasets():
    return [(torch.ones(3), i % 2) for i in range(8)], None, 2
"""


@pytest.mark.parametrize(("change", "why"), [
    ((), None),
    (("+ places)", "* (x.sum().item() or 1))"), "values"),
    (("self.outer(self.inner(x) + places)", "x[:, :2] * self.inner.weight.sum() * self.outer.weight.sum()"), "torch"),
])  # fmt: skip
def test_an_own_model_is_counted_or_why_not_is_said_in_one_line(tmp_path, change, why):
    (path := tmp_path / "mine.py").write_text(OWN.replace(*change) if change else OWN)
    facts, said = counted(model=f"{path}:build", data=f"{path}:datasets", per_device_batch=4)
    if why:
        assert facts == {} and len(said) == 1 and why in said[0] and "\n" not in said[0] and "MFU" in said[0]
    else:  # the input of the first layer gets no gradient
        assert facts["flops_per_example"] == 2 * (2 * 3 * 8 + 3 * 8 * 2) and not said
