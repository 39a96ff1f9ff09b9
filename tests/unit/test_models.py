"""bench/workload/models.py: any torchvision classifier, with or without batch norm."""

import copy

import pytest
import torch
from torch import nn

from bench.config import RunConfig, resolve
from bench.errors import UserError
from bench.workload.models import SMALL_IMAGE, ScaleShift, build_model

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def build(model="resnet18", size=8, rank=0, classes=10, **options):
    """A model for images of ``size`` pixels."""
    config = resolve(RunConfig(mode="single", model=model, image_size=size, **options), "cpu", 2)
    return build_model(config, classes, rank)


def count(model) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 8),
        ("resnet50", 16),
        ("resnet18", 64),
        ("alexnet", 64),
        ("mobilenet_v3_small", 32),
        ("squeezenet1_1", 32),
        ("shufflenet_v2_x0_5", 32),
        ("vit_b_16", 224),
        ("googlenet", 64),  # in training torchvision's returns its two auxiliary outputs, too
        ("inception_v3", 96),
    ],
)
def test_an_architecture_learns_from_a_batch(name, size):
    """One forward and backward pass in training mode, as the training loop does it."""
    model = build(name, size)
    outputs = model(torch.randn(2, 3, size, size))
    nn.functional.cross_entropy(outputs, torch.tensor([1, 2])).backward()
    assert outputs.shape == (2, 10)
    assert model.training and any(p.grad.abs().sum() > 0 for p in model.parameters())


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(UserError, match=r"unknown MODEL=resnet81: did you mean resnet18") as caught:
        build("resnet81")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "deeplabv3_resnet50", "zzz"])
def test_what_is_no_classifier_is_refused(name):
    with pytest.raises(UserError, match=f"unknown MODEL={name}"):
        build(name)


def test_a_size_that_the_architecture_cannot_take_is_refused():
    with pytest.raises(UserError, match=r"IMAGE_SIZE=16.*alexnet|alexnet.*IMAGE_SIZE=16"):
        build("alexnet", 16)
    with pytest.raises(UserError, match=r"IMAGE_SIZE=32.*vit_b_16|vit_b_16.*IMAGE_SIZE=32"):
        build("vit_b_16", 32)


@pytest.mark.parametrize("size", [8, SMALL_IMAGE - 1])
def test_small_images_get_a_small_stem(size):
    model = build("resnet18", size)
    assert isinstance(model.maxpool, nn.Identity)
    assert (model.conv1.kernel_size, model.conv1.stride) == ((3, 3), (1, 1))


def test_larger_images_keep_torchvisions_stem():
    model = build("resnet18", SMALL_IMAGE)
    assert isinstance(model.maxpool, nn.MaxPool2d) and model.conv1.kernel_size == (7, 7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v3_small"])
def test_norm_none_keeps_the_parameters_and_drops_the_statistics(name):
    with_norm, without = build(name, 32), build(name, 32, norm="none")
    assert count(without) == count(with_norm)
    assert [n for n, _ in without.named_parameters()] == [n for n, _ in with_norm.named_parameters()]
    assert not any(isinstance(m, BATCH_NORMS) for m in without.modules())
    assert list(without.buffers()) == []


def test_without_norm_images_do_not_see_each_other():
    """What makes equality of modes exact: the output of an image does not depend on its neighbours in the batch."""
    images = torch.randn(6, 3, 8, 8)
    plain = build("resnet18", 8, norm="none")
    assert torch.allclose(plain(images)[:2], plain(images[:2]), atol=1e-6)
    with_norm = build("resnet18", 8)
    assert not torch.allclose(with_norm(images)[:2], with_norm(images[:2]), atol=1e-3)


def test_without_norm_activations_stay_in_range():
    outputs = build("resnet50", 16, norm="none")(torch.randn(4, 3, 16, 16)).detach()
    assert 1e-3 < float(outputs.std()) < 1e3


def test_scale_shift_by_hand():
    layer = ScaleShift(2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 3.0]))
        layer.bias.copy_(torch.tensor([10.0, 20.0]))
    result = layer(torch.ones(1, 2, 1, 2))
    assert result.tolist() == [[[[12.0, 12.0]], [[23.0, 23.0]]]]


def test_ranks_start_apart_and_seeds_repeat():
    a, again, other_rank, other_seed = build(), build(), build(rank=1), build(seed=5)
    start = copy.deepcopy(a.state_dict())
    assert all(torch.equal(start[name], value) for name, value in again.state_dict().items())
    for model in (other_rank, other_seed):
        assert not torch.equal(start["conv1.weight"], model.conv1.weight)


def test_the_number_of_classes_is_the_data_sets():
    assert build(classes=1000).fc.out_features == 1000
