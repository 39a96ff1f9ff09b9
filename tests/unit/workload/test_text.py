"""bench/workload/text and models/gpt.py: bytes of the standard library, a decoder, bits per byte."""

import hashlib
import math

import numpy as np
import pytest
import torch

from bench import formulas
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS
from bench.record.summary import summarise_accuracy
from bench.workload import load_workload
from bench.workload.models.gpt import Gpt, build
from tests.runs import refuses


def config(**options) -> RunConfig:
    return resolve(RunConfig(mode="single", model="gpt", **options), "cpu", 2)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@pytest.fixture(scope="module")
def loaded():
    workload = load_workload(config(context=16, layers=1, width=8, heads=2), torch.device("cpu"))
    return workload, *workload.load(None, print)


def test_the_same_python_has_the_same_bytes_and_none_of_them_twice(loaded):
    workload, train_set, val_set = loaded
    assert workload.sha256 == hashlib.sha256(raw(train_set.text) + raw(val_set.text)).hexdigest()
    inputs, targets, unreadable = train_set[np.arange(len(train_set))]
    assert unreadable == [] and raw(inputs.flatten().byte()) == raw(train_set.text[: 16 * len(train_set)])
    assert torch.equal(inputs[0, 1:], targets[0, :-1]) and targets[0, -1] == inputs[1, 0]
    assert raw(val_set.text[:200]) not in raw(train_set.text)


def test_no_byte_sees_what_comes_after_it():
    model = Gpt(layers=2, width=8, heads=2, context=16, vocabulary=256)
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-6)


def test_the_formula_of_the_parameters_is_of_the_model():
    for layers, width, context in ((1, 8, 16), (3, 12, 5)):
        model = Gpt(layers, width, 2, context, 256)
        assert sum(p.numel() for p in model.parameters()) == formulas.gpt_parameters(layers, width, context, 256)


def test_bits_per_byte_of_a_model_that_knows_nothing_are_eight(loaded):
    workload, train_set, _ = loaded
    _, targets, _ = train_set[np.arange(5)]
    loss, bits = workload.count(torch.zeros(5, 16, 256), targets)
    assert bits / 5 == pytest.approx(8.0) and loss / 5 == pytest.approx(8 * math.log(2))
    assert workload.loss(torch.zeros(5, 16, 256), targets) == pytest.approx(8 * math.log(2))


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"model": "gpt", "data": "digits"}, ("MODEL=gpt", "DATA=digits")),
        ({"model": "resnet18", "data": "stdlib"}, ("MODEL=resnet18", "DATA=stdlib")),
        ({"model": "gpt", "image_size": 32}, ("IMAGE_SIZE=32",)),
        ({"data": "stdlib", "augment": True}, ("AUGMENT=1", "DATA=stdlib")),
        ({"model": "resnet18", "layers": 3}, ("NUM_LAYERS=3", "MODEL=resnet18")),
        ({"data": "digits", "context": 32}, ("CONTEXT=32", "DATA=digits")),
        ({"model": "gpt", "width": 10, "heads": 4}, ("EMBED_DIM=10", "NUM_HEADS=4")),
        ({"model": "gpt", "pretrained": "torchvision"}, ("PRETRAINED=torchvision", "MODEL=gpt")),
    ],
)
def test_what_does_not_go_together_is_one_line(options, values):
    with refuses(*values):
        RunConfig(mode="single", **options)


def test_a_step_or_a_model_that_is_too_large_is_one_line():
    workload = load_workload(config(context=2**20, per_device_batch=4), torch.device("cpu"))
    with refuses("BATCH", "CONTEXT"):
        workload.load(None, print)
    with refuses("NUM_LAYERS", "EMBED_DIM"):  # before it is built
        build(config(layers=200, width=20_000, heads=100), 256)


def test_a_metric_that_falls_is_best_where_it_is_smallest():
    metric = WORKLOADS["text"].metrics[0]
    rows = [{"epoch": n, "elapsed_s": float(n), "bits_per_byte": bits} for n, bits in ((1, 4.0), (2, 2.5), (3, None))]
    found = summarise_accuracy((metric,), 2.6, rows)
    assert (found["best_bits_per_byte"], found["time_to_accuracy_s"], found["bits_per_byte"]) == (2.5, 2.0, None)
    assert summarise_accuracy((metric,), 2.0, rows)["time_to_accuracy_s"] is None
    assert metric.improves(2.4, 2.5) and not metric.improves(2.6, 2.5) and metric.improves(9.0, None)
