"""bench/workload/text and models/gpt.py: bytes of the standard library, a decoder, bits per byte."""

import hashlib
import math

import numpy as np
import pytest
import torch

from bench import formulas
from bench.analysis import stats
from bench.analysis.equivalence import words_of
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS, work, workload_of
from bench.errors import UserError
from bench.record.summary import summarise_accuracy
from bench.workload import load_workload
from bench.workload.models.gpt import Gpt, build


def config(**options) -> RunConfig:
    return resolve(RunConfig(mode="single", model="gpt", **options), "cpu", 2)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@pytest.fixture(scope="module")
def loaded():
    """The workload of a small config, with its data."""
    workload = load_workload(config(context=16, layers=1, width=8, heads=2), torch.device("cpu"))
    return workload, *workload.load(None, print)


def test_gpt_alone_names_the_whole_workload():
    found = config()
    assert (found.data, found.image_size, found.context) == ("stdlib", None, 64)
    assert work(found) == "gpt of 2 layers, width 64, 2 heads, stdlib in sequences of 64 bytes"
    assert (workload_of(found).units, workload_of(found).batched, workload_of(found).per_example) == (
        "tokens", "sequences", 64,
    )  # fmt: skip


def test_the_same_python_has_the_same_bytes_and_none_of_them_twice(loaded):
    workload, train_set, val_set = loaded
    assert workload.sha256 == hashlib.sha256(raw(train_set.text) + raw(val_set.text)).hexdigest()
    inputs, targets, unreadable = train_set[np.arange(len(train_set))]
    assert unreadable == [] and raw(inputs.flatten().byte()) == raw(train_set.text[: 16 * len(train_set)])
    assert torch.equal(inputs[0, 1:], targets[0, :-1]) and targets[0, -1] == inputs[1, 0]
    assert raw(val_set.text[:200]) not in raw(train_set.text)


def test_no_byte_sees_what_comes_after_it(loaded):
    model = Gpt(layers=2, width=8, heads=2, context=16, vocabulary=256)
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-6)


def test_the_formula_counts_the_parameters_of_the_model():
    for layers, width, context in ((1, 8, 16), (3, 12, 5)):
        model = Gpt(layers, width, 2, context, 256)
        assert sum(p.numel() for p in model.parameters()) == formulas.gpt_parameters(layers, width, context, 256)


def test_a_step_needs_the_operations_that_the_formula_says():
    """Counted by torch, without attention's: matrix products are 6 operations per weight and token, but that the first
    layer's input gets no gradient."""
    from torch.utils.flop_counter import FlopCounterMode

    layers, width, context, batch = 2, 32, 16, 4
    model = Gpt(layers, width, 2, context, 256)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(256, (batch, context))).sum().backward()
    products = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
    weights = 12 * layers * width**2 + 256 * width
    assert products == pytest.approx(6 * weights * batch * context, rel=0.1)
    said = formulas.gpt_flops_per_token(layers, width, context, 256) - 12 * layers * width * context
    assert said == pytest.approx(6 * weights, rel=0.05)


def test_bits_per_byte_of_a_model_that_knows_nothing_are_eight(loaded):
    workload, train_set, _ = loaded
    _, targets, _ = train_set[np.arange(5)]
    loss, bits = workload.count(torch.zeros(5, 16, 256), targets)
    assert bits / 5 == pytest.approx(8.0) and loss / 5 == pytest.approx(8 * math.log(2))
    assert workload.loss(torch.zeros(5, 16, 256), targets) == pytest.approx(8 * math.log(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "gpt", "data": "digits"}, "MODEL=gpt learns text, and DATA=digits is something else"),
        ({"model": "resnet18", "data": "stdlib"}, "takes images, and DATA=stdlib is text: use MODEL=gpt"),
        ({"model": "gpt", "image_size": 32}, "IMAGE_SIZE=32 needs DATA of images"),
        ({"data": "stdlib", "augment": True}, "AUGMENT=1 needs DATA of images, not DATA=stdlib"),
        ({"model": "resnet18", "layers": 3}, "NUM_LAYERS=3 needs MODEL=gpt, not MODEL=resnet18"),
        ({"data": "digits", "context": 32}, "CONTEXT=32 needs DATA=stdlib, not DATA=digits"),
        ({"model": "gpt", "width": 10, "heads": 4}, "EMBED_DIM=10 cannot be shared out to NUM_HEADS=4"),
        ({"model": "gpt", "pretrained": "torchvision"}, "PRETRAINED=torchvision has no weights of MODEL=gpt"),
    ],
)
def test_what_does_not_go_together_is_one_line(options, words):
    with pytest.raises(UserError, match=words):
        RunConfig(mode="single", **options)


def test_a_step_larger_than_the_data_is_one_line():
    workload = load_workload(config(context=2**20, per_device_batch=4), torch.device("cpu"))
    with pytest.raises(UserError, match=r"a step of 4 sequences .* use a smaller BATCH or CONTEXT"):
        workload.load(None, print)


def test_a_model_that_is_too_large_is_refused_before_it_is_built():
    with pytest.raises(
        UserError, match=r"too large: [\d,]{15,} parameters take .* use fewer LAYERS or a smaller WIDTH"
    ):
        build(config(layers=200, width=20_000, heads=100), 256)


def test_a_metric_that_falls_is_best_where_it_is_smallest():
    metric = WORKLOADS["text"].metrics[0]
    rows = [{"epoch": n, "elapsed_s": float(n), "bits_per_byte": bits} for n, bits in ((1, 4.0), (2, 2.5), (3, None))]
    found = summarise_accuracy((metric,), 2.6, rows)
    assert (found["best_bits_per_byte"], found["time_to_accuracy_s"], found["bits_per_byte"]) == (2.5, 2.0, None)
    assert summarise_accuracy((metric,), 2.0, rows)["time_to_accuracy_s"] is None
    assert metric.improves(2.4, 2.5) and not metric.improves(2.6, 2.5) and metric.improves(9.0, None)
    same = stats.equivalence([0.001, -0.002, 0.0015], metric.margin)
    assert words_of("ddp", "single", same, metric).startswith("ddp vs single: equivalent within ±0.05 bits per byte (")
