"""bench/workload/models and freezing.py: torchvision's classifiers, norms, first weights, frozen parts."""

import functools
import os
import socket
import urllib.request

import pytest
import torch
import torchvision.models as tv
from torch import nn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes.sync_batch_norm import ReducedBatchNorm2d, replace_norms
from bench.workload import once
from bench.workload.freezing import freeze_parameters, train_mode
from bench.workload.models import build_model
from bench.workload.models.torchvisions import SMALL_IMAGE
from tests.runs import refuses

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def build(model="resnet18", size=8, rank=0, classes=10, say=print, **options):
    config = resolve(RunConfig(mode="single", model=model, image_size=size, **options), "cpu", 2)
    return build_model(config, classes, rank, say)


WIDE = [pytest.param(*row, marks=pytest.mark.wide) for row in (("vit_b_32", 224), ("inception_v3", 96))]


@pytest.mark.parametrize(("name", "size"), [("squeezenet1_1", 32), ("googlenet", 64), *WIDE])
def test_an_architecture_learns_from_a_batch(name, size):
    """One forward and backward pass in training mode, as the training loop does it. In it torchvision's googlenet and
    inception return their auxiliary outputs, too."""
    model = build(name, size)
    outputs = model(torch.randn(2, 3, size, size))
    nn.functional.cross_entropy(outputs, torch.tensor([1, 2])).backward()
    assert outputs.shape == (2, 10)
    assert model.training and any(p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(("name", "size", "values"), [
    ("resnet81", 8, ("MODEL=resnet81", "resnet18")),  # with a suggestion
    ("fasterrcnn_resnet50_fpn", 8, ("MODEL=fasterrcnn_resnet50_fpn",)),  # no classifier
    ("squeezenet1_1", 16, ("IMAGE_SIZE=16", "squeezenet1_1")),
    ("vit_b_16", 32, ("IMAGE_SIZE=32", "vit_b_16")),
])  # fmt: skip
def test_a_name_or_a_size_that_cannot_be_is_refused(name, size, values):
    with refuses(*values):
        build(name, size)


def test_small_images_get_a_small_stem_and_larger_ones_torchvisions():
    small, large = build("resnet18", SMALL_IMAGE - 1, norm="sync"), build("resnet18", SMALL_IMAGE, classes=1000)
    assert isinstance(small.maxpool, nn.Identity) and isinstance(large.maxpool, nn.MaxPool2d)
    assert (small.conv1.kernel_size, small.conv1.stride, large.conv1.kernel_size) == ((3, 3), (1, 1), (7, 7))
    assert isinstance(small.bn1, nn.BatchNorm2d) and large.fc.out_features == 1000  # a mode synchronizes the norms
    a, again, other_rank, other_seed = build(), build(), build(rank=1), build(seed=5)
    assert differ(a.state_dict(), again.state_dict()) == set()
    for model in (other_rank, other_seed):
        assert not torch.equal(a.conv1.weight, model.conv1.weight)


@pytest.mark.parametrize(("name", "norm"), [("resnet18", "none"), ("mobilenet_v3_small", "none"),
                                            ("shufflenet_v2_x0_5", "group")])  # fmt: skip
def test_without_batch_norm_images_do_not_see_each_other(name, norm):
    """What makes equality of modes exact. There are the same parameters, and no statistics."""
    images, with_norm, without = torch.randn(4, 3, 32, 32), build(name, 32), build(name, 32, norm=norm)
    for (left, one), (right, other) in zip(with_norm.named_parameters(), without.named_parameters(), strict=True):
        assert left == right and one.shape == other.shape and (norm == "none" or torch.equal(one, other)), left
    assert list(without.buffers()) == [] and not any(isinstance(m, BATCH_NORMS) for m in without.modules())
    groups = {m.num_channels: m.num_groups for m in without.modules() if isinstance(m, nn.GroupNorm)}
    assert all(channels % number == 0 and number <= 8 for channels, number in groups.items())
    for model in (with_norm, without):
        torch.manual_seed(0)
        whole = model.train(model is with_norm)(images)
        torch.manual_seed(0)
        same = torch.allclose(whole[:2] / whole.std(), model(images[:2]) / whole.std(), atol=1e-3)
        assert same == (model is without)


def differ(a: dict, b: dict) -> set[str]:
    """The modules in which two state dicts of one model differ, by the first part of their names."""
    return {key.partition(".")[0] for key in a if not torch.equal(a[key], b[key])}


def test_the_momentum_of_every_batch_norm_can_be_set():
    norms = [m for m in build(bn_momentum=0.01).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 20 and {norm.momentum for norm in norms} == {0.01}
    synced = replace_norms(build(bn_momentum=0.01), functools.partial(ReducedBatchNorm2d, None))
    assert {m.momentum for m in synced.modules() if isinstance(m, nn.BatchNorm2d)} == {0.01}
    with refuses("BN_MOMENTUM", "MODEL=squeezenet1_1"):
        build("squeezenet1_1", 64, bn_momentum=0.01)


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    """Weights of a resnet18 for 10 classes and small images, and their state dict."""
    path, state = tmp_path_factory.mktemp("weights") / "small.pt", build(seed=5).state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    return path, state


def test_of_several_weights_in_a_file_it_is_said_which_were_taken(tmp_path):
    path, state, average = tmp_path / "w.pt", build(seed=5).state_dict(), build(seed=6).state_dict()
    torch.save({"epoch": 90, "model_ema": average, "model": state}, path)
    notes = []
    assert differ(build(pretrained=str(path), say=notes.append).state_dict(), state) == set()
    (note,) = notes
    assert all(name in note for name in ("w.pt", "model_ema"))
    notes.clear()
    named = build(pretrained=f"{path}#model_ema", say=notes.append)
    assert differ(named.state_dict(), average) == set() and notes == []
    with refuses("w.pt", "ema", "epoch", "model_ema", "model"):
        build(pretrained=f"{path}#ema")


def test_ranks_read_the_same_weights_and_differ_in_a_fresh_head(weights_file):
    path, state = weights_file
    notes = []
    first, second = (build(pretrained=str(path), classes=4, rank=rank, say=notes.append) for rank in (0, 1))
    assert differ(first.state_dict(), second.state_dict()) == {"fc"}
    del state["fc.weight"], state["fc.bias"]
    assert differ(state, first.state_dict()) == set()
    weight, bias = notes[:2]
    assert "fc.weight [4, 512]" in weight and "[10, 512]" in weight and path.name in weight
    assert "fc.bias [4]" in bias and "[10]" in bias
    with refuses(path, "fc.weight"):  # to evaluate, everything must fit
        build(pretrained=str(path), classes=4, evaluate=True)


@pytest.mark.parametrize(("options", "values"), [
    ({"norm": "none"}, ("bn1.running_mean", "bn1.running_var")),
    ({"size": SMALL_IMAGE}, ("conv1.weight", "[64, 3, 3, 3]", "[64, 3, 7, 7]")),
])  # fmt: skip
def test_weights_of_another_architecture_are_refused(weights_file, options, values):
    path, _ = weights_file
    with refuses(path, *values):
        build(pretrained=str(path), **options)


def test_a_file_with_code_needs_trust(tmp_path):
    path, whole = tmp_path / "whole.pt", build(seed=5)
    torch.save(whole, path)
    with refuses("ALLOW_PICKLE=1"):
        build(pretrained=str(path))
    assert differ(build(pretrained=str(path), trust=True).state_dict(), whole.state_dict()) == set()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """torch.hub's folder, empty, and no network: the proxy is a port where nobody listens."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # it remembers the proxies of its first use
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_without_a_network_the_file_and_its_place_are_named(hub, monkeypatch):
    """Also by a proxy that takes the connection and never answers, and for a download that was cut short."""
    weights = tv.ResNet18_Weights.DEFAULT
    path = hub / os.path.basename(weights.url)
    with refuses(path, weights.url):
        build(pretrained="torchvision")
    monkeypatch.setattr(once, "SILENT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with refuses(path):
            build(pretrained="torchvision")
    assert {name.rpartition(".")[2] for name in os.listdir(hub)} <= {"lock"} and socket.getdefaulttimeout() is None
    path.write_bytes(b"PK\x03\x04 and no more")
    with refuses(path):
        build(pretrained="torchvision")


def test_torchvisions_weights_leave_a_fresh_head_and_a_small_stem_and_say_so(hub):
    source = tv.resnet18(num_classes=1000)
    torch.save(source.state_dict(), hub / os.path.basename(tv.ResNet18_Weights.DEFAULT.url))
    for size, fresh in ((SMALL_IMAGE, {"fc"}), (SMALL_IMAGE - 1, {"conv1", "fc"})):
        notes, drawn = [], build(size=size).state_dict()
        loaded = build(size=size, pretrained="torchvision", say=notes.append).state_dict()
        assert {note.partition(".")[0] for note in notes} == fresh
        for name, value in loaded.items():
            expected = drawn if name.partition(".")[0] in fresh else source.state_dict()
            assert torch.equal(value, expected[name]), name
    assert "[64, 3, 3, 3]" in notes[0] and "[64, 3, 7, 7]" in notes[0]
    assert differ(build(size=64, classes=1000, pretrained="torchvision").state_dict(), source.state_dict()) == set()


def test_torchvisions_old_names_and_second_outputs(hub):
    """googlenet's file holds two more classifiers, and its net was trained on inputs of another range."""
    source = tv.googlenet(num_classes=1000, aux_logits=True, init_weights=False).half()
    torch.save(source.state_dict(), hub / os.path.basename(tv.GoogLeNet_Weights.DEFAULT.url))
    model = build("googlenet", 64, pretrained="torchvision")
    assert torch.equal(model.conv1.conv.weight, source.conv1.conv.weight.float())
    assert model.transform_input and not build("googlenet", 64).transform_input
    assert model.fc.out_features == 10


@pytest.mark.parametrize(("options", "expected"), [
    ({"freeze": "conv1*, bn1*,layer1*"}, {"layer2", "layer3", "layer4", "fc"}),
    ({"train_only": "fc*"}, {"fc"}),
    ({"train_only": "fc.*,layer[34].*"}, {"layer3", "layer4", "fc"}),
])  # fmt: skip
def test_names_say_what_is_trained(options, expected):
    notes = []
    model = build(say=notes.append, **options)
    assert {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad} == expected
    frozen = sum(not p.requires_grad for p in model.parameters())
    (note,) = notes
    assert f"{frozen} of 62" in note and "conv1.weight" in note and f"{frozen - 4} more" in note  # and not each of them


@pytest.mark.parametrize(("options", "values"), [
    ({"freeze": "layr1*"}, ("FREEZE", "layr1*", "layer")),  # with a suggestion
    ({"freeze": "conv1*,layer1"}, ("FREEZE", "layer1.*")),
    ({"train_only": "head*"}, ("FREEZE", "head*", "conv1.*, bn1.*")),
    ({"freeze": "*"}, ("FREEZE=*",)),
])  # fmt: skip
def test_patterns_that_cannot_be_meant_are_refused(options, values):
    with refuses(*values):
        build(**options)


def test_after_validation_what_is_frozen_stays_so():
    """And dropout before a trained head is on, inside a frozen part off."""
    model = build(freeze="bn1*,layer1*,layer3.0.bn1*")
    model.eval()
    train_mode(model)
    assert model.training and model.layer2[0].bn1.training and model.layer3.training and model.layer3[0].bn2.training
    assert not any(norm.training for norm in (model.bn1, model.layer1[0].bn1, model.layer3[0].bn1))
    part = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model = nn.Sequential(part, nn.Dropout(), nn.Linear(2, 2))
    assert freeze_parameters(model, "0.*", None) == ["0.0.weight", "0.0.bias"]
    train_mode(model)
    assert (part[1].training, model[1].training) == (False, True)
