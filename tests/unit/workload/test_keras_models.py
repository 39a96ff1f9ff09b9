"""MODEL=keras: a Keras model as a module of torch: its weights, its gradients, its copies, and what is refused."""

import importlib.util

import pytest
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes.dp import CpuDataParallel
from bench.workload.models import build_model
from tests.runs import refuses

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")

NET = """
import keras

def build(classes):
    return keras.Sequential([
        keras.Input((3, 8, 8)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(axis=1),
        keras.layers.Activation("relu"), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes),
    ])

def last(classes):
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(data_format="channels_last"),
                             keras.layers.Dense(classes)])

def drops(classes):
    return keras.Sequential([keras.Input((3, 8, 8)), keras.layers.Flatten(), keras.layers.Dropout(0.5),
                             keras.layers.Dense(classes)])

def wrong(classes):
    return classes
def channels_last(classes):
    return keras.applications.MobileNetV2(input_shape=(32, 32, 3), weights=None, classes=classes)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    (path := tmp_path_factory.mktemp("keras") / "nets.py").write_text(NET)
    return path


def config(model: str, **options) -> RunConfig:
    return resolve(RunConfig(mode="single", model=model, image_size=8, data="digits", **options), "cpu", 2)


def images() -> torch.Tensor:
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def gradients(model: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(batch).square().mean().backward()
    return {name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters()}


def test_weights_are_parameters_and_statistics_are_buffers(file):
    model = build_model(config(f"keras:{file}:build"), 10, 0)
    assert len(dict(model.named_parameters())) == 6 and len(dict(model.named_buffers())) == 2
    assert sum(p.numel() for p in model.parameters()) == 3 * 9 * 4 + 4 + 4 + 4 + 4 * 10 + 10
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.eval()(images())
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert model.train()(images()).shape == (8, 10)
    assert not any(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_one_seed_gives_one_model_and_its_weights_can_be_loaded_into_another(file):
    one, same, other = (build_model(config(f"keras:{file}:build", seed=seed), 10, 0) for seed in (1, 1, 2))
    assert [*one.state_dict()] == [*other.state_dict()]
    assert torch.equal(one.eval()(images()), same.eval()(images()))
    assert not torch.equal(one(images()), other.eval()(images()))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(images()), other(images()))


def test_replicas_of_data_parallel_have_the_gradient_of_the_whole_batch(file):
    model = build_model(config(f"keras:{file}:build"), 10, 0).eval()  # without a batch's own statistics
    whole = gradients(model, images())
    shared = gradients(CpuDataParallel(model, 2, threads=2), images())
    assert whole.keys() == shared.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(shared[name], gradient)


def test_norm_none_leaves_a_scale_and_a_shift(file):
    """So an image's outputs do not depend on its batch, and all modes compute the same update."""
    model = build_model(config(f"keras:{file}:build", norm="none"), 10, 0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert all(gradient.abs().sum() > 0 for gradient in gradients(model, images()).values())
    assert torch.equal(model(images())[:2], model(images()[:2]))
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    for name, norm in (("drops", "none"), ("last", "batch")):  # without a norm, and with its channels last
        assert build_model(config(f"keras:{file}:{name}", norm=norm), 10, 0)(images()).shape == (8, 10)


def test_dropout_draws_from_torchs_generator(file):
    model = build_model(config(f"keras:{file}:drops"), 10, 0)
    assert not [*model.buffers()]
    torch.manual_seed(3)
    first, second = model(images()), model(images())
    torch.manual_seed(3)
    assert torch.equal(first, model(images())) and not torch.equal(first, second)


@pytest.mark.parametrize(("model", "options", "value"), [
    ("keras:ResNet999", {}, "MODEL=keras:ResNet999"),
    ("keras:nowhere.py:build", {}, "nowhere.py"),
    ("keras:{}:missing", {}, "missing"),
    ("keras:{}:wrong", {}, "keras.Model"),
    ("keras:{}:channels_last", {}, "channels_last"),
    ("keras:VGG16", {}, "VGG16"),  # of 8 pixels nothing is left
    ("keras:{}:build", {"norm": "group"}, "NORM=group"),
    ("keras:{}:build", {"pretrained": "torchvision"}, "PRETRAINED"),
])  # fmt: skip
def test_bad_input_is_one_line(model, options, value, file):
    with refuses(value):
        build_model(config(model.format(file), **options), 10, 0)
