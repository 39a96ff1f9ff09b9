"""bench/workload/models and freezing.py: torchvision's classifiers, norms, first weights, frozen parts."""

import copy
import functools
import os
import re
import socket
import urllib.request

import pytest
import torch
import torch.distributed as dist
import torchvision.models as tv
from torch import nn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.modes.sync_batch_norm import ReducedBatchNorm2d, replace_norms
from bench.training import checkpoint
from bench.workload import once
from bench.workload.freezing import freeze_parameters, train_mode
from bench.workload.models import ScaleShift, build_model
from bench.workload.models.torchvisions import SMALL_IMAGE

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def build(model="resnet18", size=8, rank=0, classes=10, say=print, **options):
    """A model for images of ``size`` pixels."""
    config = resolve(RunConfig(mode="single", model=model, image_size=size, **options), "cpu", 2)
    return build_model(config, classes, rank, say)


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


def test_group_norm_looks_at_one_image_and_draws_no_random_number():
    with_norm, grouped = build("shufflenet_v2_x0_5", 32), build("shufflenet_v2_x0_5", 32, norm="group")
    assert not any(isinstance(m, BATCH_NORMS) for m in grouped.modules()) and list(grouped.buffers()) == []
    groups = {m.num_channels: m.num_groups for m in grouped.modules() if isinstance(m, nn.GroupNorm)}
    assert groups[24] == 8 and all(channels % number == 0 and number <= 8 for channels, number in groups.items())
    for (name, one), (_, other) in zip(with_norm.named_parameters(), grouped.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    images = torch.randn(6, 3, 32, 32)
    assert torch.allclose(grouped(images)[:2], grouped(images[:2]), atol=1e-5)


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


@pytest.mark.parametrize("norm", ["batch", "sync"])
def test_sync_norms_are_the_modes_work(norm):
    assert isinstance(build(norm=norm).bn1, nn.BatchNorm2d)


# Pretrained


def differ(a: dict, b: dict) -> set[str]:
    """The modules in which two state dicts of one model differ, by the first part of their names."""
    return {key.partition(".")[0] for key in a if not torch.equal(a[key], b[key])}


def test_the_momentum_of_every_batch_norm_can_be_set():
    norms = [m for m in build(bn_momentum=0.01).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 20 and {norm.momentum for norm in norms} == {0.01}
    synced = replace_norms(build(bn_momentum=0.01), functools.partial(ReducedBatchNorm2d, None))
    assert {m.momentum for m in synced.modules() if isinstance(m, nn.BatchNorm2d)} == {0.01}
    with pytest.raises(UserError, match=r"BN_MOMENTUM .* MODEL=alexnet has none"):
        build("alexnet", 64, bn_momentum=0.01)


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    """Weights of a resnet18 for 10 classes and small images, and their state dict."""
    path, state = tmp_path_factory.mktemp("weights") / "small.pt", build(seed=5).state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    return path, state


def test_pretrained_weights_are_loaded(weights_file, capsys):
    path, state = weights_file
    assert differ(build(pretrained=str(path)).state_dict(), state) == set()
    assert capsys.readouterr().out == ""  # nothing to say: everything was taken


def test_of_several_weights_in_a_file_it_is_said_which_were_taken(tmp_path):
    path, state, average = tmp_path / "w.pt", build(seed=5).state_dict(), build(seed=6).state_dict()
    torch.save({"epoch": 90, "model_ema": average, "model": state}, path)
    notes = []
    assert differ(build(pretrained=str(path), say=notes.append).state_dict(), state) == set()
    assert notes == ["w.pt has weights under model, model_ema: those of model were taken"]
    notes.clear()
    named = build(pretrained=f"{path}#model_ema", say=notes.append)
    assert differ(named.state_dict(), average) == set() and notes == []
    with pytest.raises(UserError, match=re.escape("w.pt has nothing under ema (its keys: epoch, model_ema, model)")):
        build(pretrained=f"{path}#ema")


def test_ranks_read_the_same_weights_and_differ_in_a_fresh_head(weights_file):
    path, state = weights_file
    notes = []
    first, second = (build(pretrained=str(path), classes=4, rank=rank, say=notes.append) for rank in (0, 1))
    assert differ(first.state_dict(), second.state_dict()) == {"fc"}
    del state["fc.weight"], state["fc.bias"]
    assert differ(state, first.state_dict()) == set()
    assert notes[:2] == [
        f"fc.weight [4, 512] stays fresh: {path.name} has it [10, 512]",
        f"fc.bias [4] stays fresh: {path.name} has it [10]",
    ]


def test_to_evaluate_everything_must_fit(weights_file):
    path, _ = weights_file
    with pytest.raises(UserError, match=re.escape(f"{path} does not fit this model: of another shape fc.weight")):
        build(pretrained=str(path), classes=4, evaluate=True)


def test_weights_of_another_architecture_are_refused(weights_file):
    path, _ = weights_file
    with pytest.raises(UserError, match=re.escape(f"{path} does not fit this model: ")):
        build("resnet34", pretrained=str(path))
    with pytest.raises(UserError, match=r"unexpected bn1.running_mean, bn1.running_var"):
        build(pretrained=str(path), norm="none")
    with pytest.raises(UserError, match=r"of another shape conv1.weight \[64, 3, 3, 3\] for \[64, 3, 7, 7\]"):
        build(pretrained=str(path), size=SMALL_IMAGE)


def test_a_file_with_code_needs_trust(tmp_path):
    path, whole = tmp_path / "whole.pt", build(seed=5)
    torch.save(whole, path)
    with pytest.raises(UserError, match="ALLOW_PICKLE=1"):
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


def test_without_a_network_the_file_and_its_place_are_named(hub):
    weights = tv.ResNet18_Weights.DEFAULT
    with pytest.raises(UserError) as caught:
        build(pretrained="torchvision")
    line = str(caught.value)
    assert f"{hub}/{os.path.basename(weights.url)} does not exist and cannot be downloaded" in line
    assert f"download {weights.url} elsewhere" in line and "\n" not in line
    assert {name.rpartition(".")[2] for name in os.listdir(hub)} <= {"lock"}


def test_a_download_that_stands_still_ends(hub, monkeypatch):
    """A proxy that takes the connection and never answers."""
    monkeypatch.setattr(once, "SILENT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match=r"cannot be downloaded .*timed out"):
            build(pretrained="torchvision")
    assert {name.rpartition(".")[2] for name in os.listdir(hub)} <= {"lock"} and socket.getdefaulttimeout() is None


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
    assert notes[0].startswith("conv1.weight [64, 3, 3, 3] stays fresh: ") and notes[0].endswith("[64, 3, 7, 7]")
    assert differ(build(size=64, classes=1000, pretrained="torchvision").state_dict(), source.state_dict()) == set()


def test_a_download_that_was_cut_short_is_one_line(hub):
    path = hub / os.path.basename(tv.ResNet18_Weights.DEFAULT.url)
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UserError, match=re.escape(f"{path} cannot be read")) as caught:
        build(pretrained="torchvision")
    assert "\n" not in str(caught.value)


def test_torchvisions_old_names_and_second_outputs(hub):
    """googlenet's file holds two more classifiers, and its net was trained on inputs of another range."""
    source = tv.googlenet(num_classes=1000, aux_logits=True, init_weights=False).half()
    torch.save(source.state_dict(), hub / os.path.basename(tv.GoogLeNet_Weights.DEFAULT.url))
    model = build("googlenet", 64, pretrained="torchvision")
    assert torch.equal(model.conv1.conv.weight, source.conv1.conv.weight.float())
    assert model.transform_input and not build("googlenet", 64).transform_input
    assert model.fc.out_features == 10


# Freezing


def trained(model) -> set[str]:
    """The top of the names of what is trained."""
    return {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad}


def step(model, plain) -> None:
    """One step of training on random images."""
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.tensor([0, 1, 2, 3])).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"freeze": "conv1*, bn1*,layer1*"}, {"layer2", "layer3", "layer4", "fc"}),
        ({"train_only": "fc*"}, {"fc"}),
        ({"train_only": "fc.*,layer[34].*"}, {"layer3", "layer4", "fc"}),
    ],
)
def test_names_say_what_is_trained(options, expected):
    notes = []
    model = build(say=notes.append, **options)
    assert trained(model) == expected
    frozen = sum(not p.requires_grad for p in model.parameters())
    assert len(notes) == 1 and notes[0].startswith(f"{frozen} of 62 parameters are frozen: conv1.weight, ")
    assert notes[0].endswith(f" and {frozen - 4} more")  # and not each of them


def test_frozen_names_are_returned():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert freeze_parameters(model, "0.*", None) == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": "layr1*"}, r"FREEZE: no parameter is called layr1\*: did you mean layer"),
        ({"freeze": "conv1*,layer1"}, r"FREEZE: no parameter is called layer1: did you mean layer1\.\*"),
        ({"train_only": "head*"}, r"FREEZE: no parameter is called head\*: this model has conv1\.\*, bn1\.\*"),
        ({"freeze": "*"}, r"FREEZE=\* leaves nothing to train"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(UserError, match=message) as caught:
        build(**options)
    assert "\n" not in str(caught.value)


def test_ddp_takes_steps_with_frozen_parameters():
    """Two steps: DDP finds out in the second forward that a gradient of the first never came."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        plain = build(freeze="conv1*,bn1*,layer1*,layer2*")
        start = copy.deepcopy(plain.state_dict())
        model = nn.parallel.DistributedDataParallel(plain)
        step(model, plain)
        step(model, plain)
    finally:
        dist.destroy_process_group()
    for parameter in plain.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad
    assert differ(start, plain.state_dict()) == {"layer3", "layer4", "fc"}  # buffers too, and weight decay


def test_statistics_of_frozen_norms_stay_and_the_others_move():
    model = build(freeze="conv1*,bn1*,layer1*,layer2.0.bn1*")
    start = copy.deepcopy(model.state_dict())
    step(model, model)
    now = model.state_dict()
    moved = {key for key in now if key.endswith("running_mean") and not torch.equal(now[key], start[key])}
    norms = {f"{name}.running_mean" for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert norms - moved == {k for k in norms if k.startswith(("bn1.", "layer1.", "layer2.0.bn1."))}


def test_after_validation_frozen_norms_are_still_frozen():
    model = build(freeze="bn1*,layer1*")
    model.eval()
    train_mode(model)
    assert model.training and model.layer2.training and model.layer2[0].bn1.training
    assert not model.bn1.training and not model.layer1[0].bn1.training


def test_train_mode_of_a_model_that_is_trained_whole_is_train():
    model = build("mobilenet_v3_small", 32).eval()
    train_mode(model)
    assert all(module.training for module in model.modules())


def test_dropout_before_a_trained_head_stays_on_and_inside_a_frozen_part_is_off():
    part = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model = nn.Sequential(part, nn.Dropout(), nn.Linear(2, 2))
    freeze_parameters(model, "0.*", None)
    train_mode(model)
    assert (part[1].training, model[1].training) == (False, True)


def test_a_checkpoint_of_a_run_with_frozen_parts_fits_one_without(tmp_path):
    """Freezing is not part of the weights."""
    path, model = tmp_path / "latest.pt", build(freeze="conv1*", seed=5)
    checkpoint.save(path, {"model": model.state_dict()})
    assert differ(build(pretrained=str(path)).state_dict(), model.state_dict()) == set()
