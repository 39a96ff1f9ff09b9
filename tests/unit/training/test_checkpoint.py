"""bench/training/checkpoint.py: files that are whole whatever happens. bench/workload/weights.py: weights from whatever
people have saved."""

import itertools
import multiprocessing
import os
import pickle
import random
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torchvision.models as tv
from torch import nn
from torch.optim.swa_utils import AveragedModel

from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS
from bench.errors import BenchError, UserError
from bench.modes.base import Mode
from bench.record.privacy import without_names
from bench.training import checkpoint, epochs
from bench.workload.weights import head_of, load_weights, read, weights_in
from tests.runs import refuses

TOP1 = WORKLOADS["images"].metrics[0]


def network(classes=3) -> nn.Module:
    """A small classifier with a batch norm; other weights each time."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, classes))


def full_state() -> dict:
    """A checkpoint of the bench with everything in it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return {
        "format": checkpoint.FORMAT,
        "version": checkpoint.VERSION,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": None,
        "step": 7,
        "images_seen": 448,
        "accuracy": [{"epoch": 1, "steps": 5, "elapsed_s": 9.5, "top1": 0.5}],
        "loss_sum": 3.5,
        "loss_steps": 2,
        "skipped_steps": 1,
        "elapsed_s": 12.5,
        "world_size": 1,
        "guard": 1.5,
        "config": to_dict(RunConfig(mode="ddp", lr=0.1)),
        "num_images": 1437,
        "ranks": [{"buffers": dict(model.named_buffers()), "rng": {"cpu": torch.get_rng_state()}}],
    }


def same(a: dict, b: dict) -> bool:
    """Whether two state dicts are equal, names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def refused(call, *args, names=(), error=UserError, **options) -> str:
    """The one line with which a call is refused; it names these."""
    with refuses(*names, error=error) as caught:
        call(*args, **options)
    return str(caught.value)


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


# Writing


def test_a_checkpoint_comes_back_as_it_was_whatever_device_it_was_saved_from(tmp_path, monkeypatch):
    """Bit for bit. The file says cuda:63, which no machine has: what a GPU would have written, without a GPU."""
    path, state = tmp_path / "latest.pt", full_state()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:63")
        checkpoint.save(path, state)
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(path, weights_only=True)
    back = checkpoint.read(path)
    assert same(back["model"], state["model"]) and same(weights_in(back, path), state["model"])
    assert torch.equal(*(each["optimizer"]["state"][0]["momentum_buffer"] for each in (back, state)))
    assert os.listdir(tmp_path) == ["latest.pt"]


def keep_saving(path: Path) -> None:
    for step in itertools.count(1):
        checkpoint.save(path, of_step(step))


def of_step(step: int) -> dict:
    """A checkpoint of 3.2 MB. NumPy fills it: torch's threads do not survive a fork."""
    return {"step": step, "model": {str(i): torch.from_numpy(np.full(100_000, step, "float32")) for i in range(8)}}


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """At least twenty times SIGKILL while a process saves; what counts is that some hit it in the middle."""
    latest, moments = tmp_path / "latest.pt", random.Random(0)
    checkpoint.save(latest, of_step(0))
    half_written, limit = 0, time.monotonic() + 60
    for trial in itertools.count(1):
        child = multiprocessing.get_context("fork").Process(target=keep_saving, args=(latest,))
        child.start()
        time.sleep(moments.uniform(0.005, 0.06))
        child.kill()
        child.join()
        half_written += (tmp_path / "latest.pt.tmp").exists()
        content = read(latest)
        assert all(bool((layer == content["step"]).all()) for layer in content["model"].values()), trial
        if trial >= 20 and ((half_written and content["step"]) or time.monotonic() > limit):  # longer where busy
            break
    assert half_written > 0 and content["step"] > 0


def test_what_cannot_be_written_leaves_the_old_checkpoint_and_nothing_else(tmp_path):
    """A limit on the size of a file stands for a full disk: the write fails in the middle in the same way."""
    checkpoint.save(tmp_path / "latest.pt", {"step": 1})
    large, (soft, hard) = {"model": torch.zeros(800_000)}, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        for path in (tmp_path / "latest.pt", tmp_path / "other.pt"):
            refused(checkpoint.save, path, large, names=[path], error=BenchError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        checkpoint.save(tmp_path / "latest.pt", {"step": lambda: 2})
    assert read(tmp_path / "latest.pt") == {"step": 1} and os.listdir(tmp_path) == ["latest.pt"]
    gone = tmp_path / "none" / "latest.pt"
    refused(checkpoint.save, gone, {}, names=[gone], error=BenchError)
    refused(checkpoint.keep, gone, tmp_path / "best.pt", names=["best.pt"], error=BenchError)
    assert os.listdir(tmp_path) == ["latest.pt"]


@pytest.mark.parametrize("links", [True, False])
def test_best_stays_when_latest_goes_on(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(1, "Operation not permitted")))
    latest, best = tmp_path / "latest.pt", tmp_path / "best.pt"
    for step in (1, 2):
        checkpoint.save(latest, {"step": step})
        checkpoint.keep(latest, best)
        checkpoint.keep(latest, best)  # rename() of two names of one file does nothing: a temporary name would stay
    assert os.path.samefile(latest, best) == links
    checkpoint.save(latest, {"step": 3})
    assert (read(latest), read(best)) == ({"step": 3}, {"step": 2})
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "latest.pt"]


@pytest.mark.parametrize(("newest", "kept"), [(None, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_epochs_are_kept(tmp_path, newest, kept):
    for epoch in (1, 2, 3, 4):
        checkpoint.save(tmp_path / "latest.pt", {"epoch": epoch})
        checkpoint.keep_epoch(tmp_path / "latest.pt", epoch, newest)
    found = {path.name: read(path)["epoch"] for path in tmp_path.glob("epoch*.pt")}
    assert found == {f"epoch{epoch}.pt": epoch for epoch in kept} and read(tmp_path / "latest.pt") == {"epoch": 4}


def test_the_best_before_an_epoch_is_not_one_after_it(tmp_path):
    """best.pt comes from the fourth epoch; who goes back to the third must not inherit it."""
    rows = [{"epoch": epoch, "top1": top1} for epoch, top1 in ((1, 0.2), (2, 0.6), (3, 0.5), (4, 0.9))]
    for name in ("latest.pt", "best.pt", "epoch2.pt", "epoch3.pt"):
        (tmp_path / name).touch()
    assert checkpoint.best_of(tmp_path / "latest.pt", rows, TOP1) == tmp_path / "best.pt"
    assert checkpoint.best_of(tmp_path / "epoch3.pt", rows[:3], TOP1) == tmp_path / "epoch2.pt"
    (tmp_path / "epoch2.pt").unlink()
    assert checkpoint.best_of(tmp_path / "epoch3.pt", rows[:3], TOP1) is None
    assert checkpoint.best_of(tmp_path / "latest.pt", [{"epoch": 1}], TOP1) is None  # nothing was validated


# Which checkpoint, and reading


def test_find_takes_a_file_a_run_or_the_newest_of_many(tmp_path):
    runs = tmp_path / "runs"
    for age, name in enumerate(["b", "c", "a"]):  # a is the newest
        (runs / name).mkdir(parents=True)
        checkpoint.save(runs / name / "latest.pt", {"step": age})
        os.utime(runs / name / "latest.pt", (1000 + age, 1000 + age))
    (runs / "d").mkdir()  # a run without a checkpoint
    found = {"b/latest.pt": "b", "c": "c", ".": "a", "..": "a"}
    assert {asked: checkpoint.find(str(runs / asked)).parent.name for asked in found} == found
    for name in ("d", "e"):
        refused(checkpoint.find, str(runs / name), names=[f"RESUME={runs / name}"])


def test_resume_refuses_what_it_cannot_resume():
    state = full_state()
    for content, names in (
        (network(), ["PRETRAINED=x.pt"]),
        (network().state_dict(), ["PRETRAINED=x.pt"]),
        (state | {"version": 2}, ["version 2"]),
        (state | {"version": "one"}, ["version one"]),
        ({key: state[key] for key in state.keys() - {"optimizer", "ranks"}}, ["optimizer", "ranks"]),
    ):
        refused(checkpoint.check, content, "x.pt", names=["x.pt", *names])


def test_what_is_no_checkpoint_is_one_line_that_names_it(tmp_path):
    path, weights = tmp_path / "a.pt", network().state_dict()
    refused(read, path, names=[path])
    refused(read, tmp_path, names=[tmp_path])
    torch.save(weights, path, _use_new_zipfile_serialization=False)  # as older versions of torch
    assert same(read(path), weights)
    older = path.read_bytes()
    torch.save(weights, path)
    for content in (older, path.read_bytes()):
        for cut in (content[:0], content[:100], content[: len(content) // 2], content[:-1]):
            path.write_bytes(cut)
            for trust in (False, True):
                assert "ALLOW_PICKLE" not in refused(read, path, trust, names=[path])
    for content in (b"hello, this is a text\n", pickle.dumps({"step": 1})):
        path.write_bytes(content)
        refused(read, path, names=[path])


class Malicious:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_no_code_of_a_file_runs_unless_it_is_trusted(tmp_path):
    path, made = tmp_path / "a.pt", tmp_path / "made"
    torch.save({"model": Malicious(made)}, path)
    refused(read, path, names=[path, "mkdir", "ALLOW_PICKLE=1"])
    assert not made.exists()
    read(path, trust=True)  # it would have run
    assert made.exists()


class Gone(nn.Linear):
    """A class that its file outlives."""


def test_a_module_whose_code_is_gone_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    torch.save(Gone(1, 1), path)
    assert isinstance(read(path, trust=True), Gone)
    monkeypatch.delattr(sys.modules[__name__], "Gone")
    refused(read, path, trust=True, names=[path, "Gone"])


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors comes with timm")
    path, weights = tmp_path / "a.safetensors", network().state_dict()
    safetensors.save_file(weights, path)
    assert same(weights_in(read(path), path), weights)
    path.write_bytes(path.read_bytes()[:-100])
    refused(read, path, names=[path])


# Weights


WRAPPERS = {
    "plain": lambda model: model,
    "dp": nn.DataParallel,
    "ddp": nn.parallel.DistributedDataParallel,
    "compiled": torch.compile,
    "ddp of compiled": lambda model: nn.parallel.DistributedDataParallel(torch.compile(model)),
    "compiled ddp": lambda model: torch.compile(nn.parallel.DistributedDataParallel(model)),
    "dp of dp": lambda model: nn.DataParallel(nn.DataParallel(model)),
}
FORMS = {
    "state dict": lambda wrapped: wrapped.state_dict(),
    **{f"under {key}": lambda wrapped, key=key: {"epoch": 3, "args": {"lr": 0.1}, key: wrapped.state_dict()}
       for key in ("model", "state_dict", "model_state_dict", "weights", "params", "model_ema")},
    "beside a name": lambda wrapped: {"params": wrapped.state_dict(), "model": "resnet50"},
    "under ema": lambda wrapped: {"ema": AveragedModel(wrapped).state_dict(), "model": {"name": "resnet50"}},
    "nested": lambda wrapped: {"model": {"state_dict": wrapped.state_dict(), "step": 1}},
    "parameters": lambda wrapped: dict(wrapped.named_parameters()) | dict(wrapped.named_buffers()),
    "whole module": lambda wrapped: wrapped,
    "whole module under model": lambda wrapped: {"model": wrapped, "epoch": 3},
}  # fmt: skip
SAVED = [(wrapper, form) for wrapper in WRAPPERS for form in FORMS
         if form in ("state dict", "whole module") or wrapper == "compiled ddp"]  # fmt: skip


@pytest.mark.parametrize(("wrapper", "form"), SAVED)
def test_every_form_loads_into_the_plain_model(tmp_path, group, wrapper, form):
    """Saved in a process that has a group, read after it is gone."""
    path, saved, model = tmp_path / "a.pt", network(), network()
    torch.save(FORMS[form](WRAPPERS[wrapper](saved)), path)
    dist.destroy_process_group()
    assert not same(model.state_dict(), saved.state_dict())
    content = read(path, trust="whole" in form)
    assert load_weights(model, weights_in(content, path), path) == []
    assert same(model.state_dict(), saved.state_dict())


def test_a_prefix_that_not_all_keys_carry_is_a_name():
    weights = {"module.weight": torch.zeros(1), "fc.weight": torch.zeros(1)}
    assert list(weights_in(weights, "x.pt")) == ["module.weight", "fc.weight"]


@pytest.mark.parametrize("content", [{}, {"epoch": 3, "net": {}}, {"model": {}}, [torch.zeros(1)], torch.zeros(1)])
def test_a_file_without_weights_is_one_line(content):
    refused(weights_in, content, "x.pt", names=["x.pt"])


def test_keys_that_do_not_fit_are_named_and_nothing_is_loaded():
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    weights = network().state_dict()
    del weights["3.bias"]
    weights["0.weight"] = torch.zeros(4, 3, 5, 5)
    weights |= {f"extra{i}": torch.zeros(1) for i in range(5)}
    names = ["3.bias", "extra0, extra1, extra2", "(5 in all)", "0.weight [4, 3, 5, 5] for [4, 3, 3, 3]"]
    refused(load_weights, model, weights, "x.pt", new_head=True, names=names)
    # Half-stripped, the mistake that strict=False hides: no key fits, and the model would stay as it was.
    weights = {f"module.{key}": value for key, value in network().state_dict().items()}
    refused(load_weights, model, weights, "x.pt", names=["0.weight", "module.0.weight"])
    assert same(model.state_dict(), before)


def test_only_the_head_may_be_new():
    """Of a layer before it the shape must fit, and the head is then not blamed."""
    saved, model = (nn.Sequential(nn.Linear(4, n), nn.Linear(n, 2)) for n in (6, 5))
    line = refused(load_weights, model, saved.state_dict(), "x.pt", new_head=True, names=["0.weight [6, 4] for [5, 4]"])
    assert "1.weight" not in line


def test_files_without_counters_of_batch_norms_load_and_say_so():
    """torchvision's older files have none."""
    saved, model = network(), network()
    weights = {k: v for k, v in saved.state_dict().items() if not k.endswith("num_batches_tracked")}
    (note,) = load_weights(model, weights, Path("x.pt"))
    assert "x.pt" in note and "num_batches_tracked" in note
    assert torch.equal(model[0].weight, saved[0].weight)


HEADS = {"resnet18": "fc", "alexnet": "classifier.6", "squeezenet1_1": "classifier.1", "densenet121": "classifier",
         "mobilenet_v3_small": "classifier.3", "vit_b_16": "heads.head", "swin_t": "head", "googlenet": "fc",
         "convnext_tiny": "classifier.2"}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_the_head_of_torchvisions_classifiers(name):
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):
        assert head_of(tv.get_model(name, weights=None, num_classes=7, **options)) == HEADS[name]


def test_an_optimizers_state_that_does_not_fit_is_refused_and_its_settings_stay():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = SimpleNamespace(model=model, optimizer=optimizer, mode=object.__new__(Mode))
    state, path = full_state()["optimizer"], Path("x.pt")
    epochs.load_optimizer(trainer, state, path)
    momenta = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    assert optimizer.param_groups[0]["lr"] == 0.5 and len(momenta) == 6
    assert all(map(torch.equal, momenta, (entry["momentum_buffer"] for entry in state["state"].values())))
    for wrong in ({"state": {}, "param_groups": []}, {"state": {}}):
        refused(epochs.load_optimizer, trainer, wrong, path, names=[path])


def test_the_users_own_files_are_no_change_when_a_run_is_resumed():
    def said(**changes) -> str:
        config = resolve(RunConfig(**asked | changes), "cpu", 2)
        state = {"config": to_dict(without_names(before)), "world_size": 1, "step": 3}
        state |= {"images_seen": 3, "num_images": 9}
        return "\n".join(epochs.differences(state, config, 1))

    asked = {"mode": "single", "model": "/somewhere/net.py:make", "data": "digits", "epochs": 2}
    before = resolve(RunConfig(**asked), "cpu", 2)
    assert "changed" not in said()
    assert "model net.py:make → other.py:make" in said(model="/somewhere/other.py:make")
