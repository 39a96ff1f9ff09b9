"""bench/modes/dp.py: its CPU replicas do what nn.DataParallel does on GPUs, of which a part is tested without one."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.measure.facts import memory_format
from bench.modes import base, load_mode
from bench.modes.dp import CpuDataParallel, DataParallel


def network(norm: bool) -> nn.Module:
    """A small convolutional network, the same each time."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 36, 5))


def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [count, 3, 8, 8] and labels [count], the same each time."""
    torch.manual_seed(1)
    return torch.randn(count, 3, 8, 8), torch.randint(5, (count,))


def gradients(model: nn.Module, images, labels) -> dict[str, torch.Tensor]:
    """The gradients of the mean loss over a batch, by the plain model's names."""
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    plain = getattr(model, "module", model)
    return {name: p.grad.clone() for name, p in plain.named_parameters()}


@pytest.fixture
def replicated():
    """Makes a CpuDataParallel of a network; its threads end with the test."""
    made = []

    def make(model, num_replicas):
        made.append(CpuDataParallel(model, num_replicas, threads=2))
        return made[-1]

    yield make
    for model in made:
        model.close()


def test_a_validation_uses_every_replica():
    """A replica computes in its own thread."""
    mode, chunks = load_mode("dp")(resolve(RunConfig(mode="dp", num_devices=3, threads=3), "cpu", 3)), []
    plain = network(norm=True)
    plain.register_forward_hook(lambda _, inputs, __: chunks.append((len(inputs[0]), threading.current_thread().name)))
    model, (images, _) = mode.wrap_model(plain).eval(), batch(8)
    outputs = mode.eval_model(model)(images)
    model.close()
    assert sorted(size for size, _ in chunks) == [2, 3, 3]
    assert len({thread for _, thread in chunks}) == 3 and all("replica" in thread for _, thread in chunks)
    assert torch.allclose(outputs, plain(images), atol=1e-6)


@pytest.mark.parametrize(("num_replicas", "count"), [(1, 12), (3, 12), (3, 7), (4, 1), (4, 5)])
def test_a_training_follows_one_process(replicated, num_replicas, count):
    """Outputs in the order of the images, gradients and three steps, each with the weights that the optimizer has just
    changed; a batch smaller than the replicas uses fewer."""
    plain = network(norm=False)
    model = replicated(copy.deepcopy(plain), num_replicas)
    images, labels = batch(count)
    assert torch.allclose(model(images), plain(images), atol=1e-6)
    expected, found = gradients(plain, images, labels), gradients(model, images, labels)
    assert max(float((expected[n] - found[n]).abs().max()) for n in expected) <= 1e-6
    for one in (plain, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(one(images), labels).backward()
            optimizer.step()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)  # the replicas' are not in the model
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= 1e-5
    assert list(model.state_dict()) == [f"module.{name}" for name in plain.state_dict()]


def test_batch_norm_is_each_chunks_own_and_replica_0s_statistics_are_kept(replicated):
    """What another replica writes into a buffer is lost every step."""
    plain = network(norm=True)
    images, _ = batch(8)
    model = replicated(copy.deepcopy(plain), 2)
    outputs, twin = model(images), copy.deepcopy(plain)
    halves = [twin(images[:4]), copy.deepcopy(plain)(images[4:])]
    assert torch.allclose(outputs, torch.cat(halves), atol=1e-6)
    assert not torch.allclose(outputs, plain(images), atol=1e-2)
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(model.module[1], name), getattr(twin[1], name), atol=1e-6)
    for step in range(2, 5):
        model(images)
        assert model.module[1].num_batches_tracked == step
        assert all(shell[1].num_batches_tracked == step for shell in model.shells)  # a copy of step - 1, and its own


def test_the_state_of_the_caller_reaches_every_thread(replicated):
    """Evaluation, no_grad and autocast; and an error comes back."""
    model = replicated(network(norm=True), 3)
    images, _ = batch(6)
    model(images)
    model.eval()
    before = model.module[1].running_mean.clone()
    with torch.no_grad():
        outputs = model(images)
    assert torch.equal(model.module[1].running_mean, before) and not outputs.requires_grad
    assert torch.allclose(outputs, model.module(images), atol=1e-6)
    model.train()
    assert model(images).requires_grad and not torch.equal(model.module[1].running_mean, before)
    seen = []
    for replica in (model.module, *model.shells):
        replica.register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images).dtype == torch.bfloat16 and seen == [torch.bfloat16] * 3
    assert model(images).dtype == torch.float32
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 3, 5, 5))


def test_a_sum_of_gradients_is_a_mistake_and_said_to_be():
    for mistake, sums in (("none", False), ("gradient-sum", True), ("no-reshuffle", False)):
        config = RunConfig(mode="dp", num_devices=2, device="cpu", epochs=2, mistake=mistake)
        mode = load_mode("dp")(resolve(config, "cpu", 2))
        assert mode.sums_gradients == sums and ("sum" in mode.gradient) == sums


class Several(nn.Module):
    """Several arguments in, an object with a loss out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x, *more, scale, labels=None, name=""):
        logits = self.layer(x["x"]) * scale[1][:, None]
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        parts = {"logits": logits, "nothing": None, "name": name, "more": [part + 1 for part in more]}
        return SimpleNamespace(parts=parts, loss=loss)


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_positional_and_keyword_arguments_of_any_structure_are_cut_and_outputs_joined(replicated, num_replicas):
    plain = Several()
    model = replicated(copy.deepcopy(plain), num_replicas)
    x, scale, labels, more = torch.randn(6, 4), torch.rand(6), torch.arange(6) % 3, torch.arange(6)
    for one in (plain, model):
        out = one({"x": x}, more, scale=[None, scale], labels=labels, name="a")
        assert (out.parts["nothing"], out.parts["name"]) == (None, "a")
        assert out.parts["more"][0].equal(more + 1) and out.parts["logits"].shape == (6, 3)
        assert out.loss.shape == ((num_replicas,) if one is model else ())  # one of each replica, as nn.DataParallel
        out.loss.mean().backward()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, atol=1e-6) for a, b in pairs)


class Rows(nn.Linear):
    def forward(self, x):
        return list(super().forward(x))


def test_what_cannot_be_cut_or_joined_is_refused(replicated):
    """A tensor that is not of the batch; replicas with different structures."""
    for other, shape in ((torch.ones(5), r"\[5\]"), (torch.tensor(2.0), r"\[\]")):
        with pytest.raises(UserError, match=rf"nn.DataParallel .*\[6, 4\], {shape}"):
            replicated(Several(), 2)({"x": torch.ones(6, 4)}, scale=[None, other])
    with pytest.raises(UserError, match=r"\(2, 1\)"):
        replicated(Rows(4, 3), 2)(torch.ones(3, 4))


def test_replicas_of_nn_dataparallel_compute_in_the_callers_precision(monkeypatch):
    """PyTorch's threads enter autocast with the dtype that is theirs, on a CPU bfloat16. They need GPUs: here a
    stand-in starts them."""

    def threads(self, replicas, inputs, kwargs):
        enabled = torch.is_autocast_enabled("cpu")

        def run(replica, arguments, options):
            with torch.autocast("cpu", enabled=enabled):
                return replica(*arguments, **options)

        with ThreadPoolExecutor(1) as fresh:
            return list(fresh.map(run, replicas, inputs, kwargs))

    monkeypatch.setattr(nn.DataParallel, "parallel_apply", threads)
    plain = nn.Linear(2, 2)
    for kind, reduced in ((nn.DataParallel, torch.bfloat16), (DataParallel, torch.float16)):
        model = kind(plain)
        assert model.module is plain
        model.src_device_obj = torch.device("cpu")
        for enabled, dtype in ((True, reduced), (False, torch.float32)):
            with torch.autocast("cpu", enabled=enabled, dtype=torch.float16):
                outputs = model.parallel_apply([plain, plain], [(torch.ones(1, 2),)] * 2, [{}] * 2)
            assert [output.dtype for output in outputs] == [dtype] * 2


def test_a_copied_weight_is_contiguous_whatever_it_was():
    """What broadcast_coalesced, by which DataParallel copies the weights, does with them between two GPUs."""
    weight = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
    (copied,) = _unflatten_dense_tensors(_flatten_dense_tensors([weight]), [weight])
    assert copied.is_contiguous() and not copied.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("device", "num_devices", "last"), [("cuda", 2, False), ("cuda", 1, True), ("cpu", 2, True)])
def test_weights_lie_on_all_devices_as_the_record_says(device, num_devices, last, monkeypatch):
    """Several GPUs have contiguous weights on each; one calls the module itself, and CPU replicas keep the order."""
    monkeypatch.setattr(base, "device_of", lambda config, rank: torch.device(device, 0))  # it need not be there
    config = resolve(RunConfig(mode="dp", num_devices=num_devices, channels_last=True), device, 4)
    assert (not load_mode("dp")(config).contiguous_weights) is last
    layout = torch.channels_last if last else torch.contiguous_format
    model = torch.nn.Conv2d(4, 8, 3).to(memory_format=layout)  # as the worker makes it
    said = "channels_last" if last else "channels_last images, contiguous weights"
    assert memory_format(model, images_last=True) == said
