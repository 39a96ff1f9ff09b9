"""CpuDataParallel of bench/modes/dp.py does on CPU replicas what nn.DataParallel does on GPUs."""

import contextlib
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.modes import load_mode
from bench.modes.dp import CpuDataParallel, DataParallel, in_this_autocast
from bench.training import validation


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
    """Through the function with which every mode validates; a replica computes in a thread of its own."""
    config = resolve(RunConfig(mode="dp", num_devices=3, epochs=1, threads=3), "cpu", 3)
    mode, chunks = load_mode("dp")(config), []
    plain = network(norm=True)
    plain.register_forward_hook(lambda _, inputs, __: chunks.append((len(inputs[0]), threading.current_thread().name)))
    model = mode.wrap_model(plain)
    images, labels = batch(8)
    seen = SimpleNamespace(
        mode=mode, model=model, device=torch.device("cpu"), autocast=contextlib.nullcontext(), skipped_images=set(),
        status=SimpleNamespace(phase=lambda name: None), images_seen=0,
        progress=SimpleNamespace(validation_starts=lambda *_: None, batch_validated=lambda *_: None),
        workload=SimpleNamespace(info=SimpleNamespace(metrics=(1,)), prepare=lambda x: x, blank=lambda: None,
                                 forward=lambda model, inputs, targets: model(inputs)),
        counted=lambda outputs, targets: torch.tensor([0, (outputs.argmax(1) == targets).sum(), len(targets)]),
    )  # fmt: skip
    before = copy.deepcopy(plain.state_dict())
    counts = validation.count(seen, [(images, labels, [])], mode.judged(model))
    model.close()
    assert sorted(size for size, _ in chunks) == [2, 3, 3]
    assert len({thread for _, thread in chunks}) == 3 and all("replica" in thread for _, thread in chunks)
    plain.eval()
    right = int((plain(images).argmax(1) == labels).sum())
    assert counts.tolist() == [0, right, 8]
    assert all(torch.equal(before[name], value) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
def test_gradients_are_those_of_one_process(replicated, num_replicas):
    plain = network(norm=False)
    model = replicated(copy.deepcopy(plain), num_replicas)
    images, labels = batch(12)
    expected, found = gradients(plain, images, labels), gradients(model, images, labels)
    assert max(float((expected[n] - found[n]).abs().max()) for n in expected) <= 1e-6


def test_training_follows_one_process(replicated):
    """Ten steps: each copies the weights that the optimizer has just changed."""
    plain = network(norm=False)
    model = replicated(copy.deepcopy(plain), 3)
    images, labels = batch(12)
    for one in (plain, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(one(images), labels).backward()
            optimizer.step()
    pairs = zip(plain.parameters(), model.module.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= 1e-6


def test_outputs_come_back_in_the_order_of_the_images(replicated):
    plain = network(norm=False)
    images, _ = batch(7)
    assert torch.allclose(replicated(plain, 3)(images), plain(images), atol=1e-6)


def test_batch_norm_keeps_the_statistics_of_replica_0_alone(replicated):
    plain = network(norm=True)
    model = replicated(copy.deepcopy(plain), 2)
    images, _ = batch(8)
    outputs = model(images)
    first_half = plain(images[:4])  # what replica 0 saw
    ours, theirs = model.module[1], plain[1]
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var, atol=1e-6)
    assert ours.num_batches_tracked == 1
    assert torch.allclose(outputs[:4], first_half, atol=1e-6)


def test_batch_norm_normalises_each_chunk_by_itself(replicated):
    plain = network(norm=True)
    images, _ = batch(8)
    halves = torch.cat([copy.deepcopy(plain)(half) for half in images.chunk(2)])
    outputs = replicated(copy.deepcopy(plain), 2)(images)
    assert torch.allclose(outputs, halves, atol=1e-6)
    assert not torch.allclose(outputs, plain(images), atol=1e-2)


def test_what_a_replica_writes_into_a_buffer_is_lost_every_step(replicated):
    model = replicated(network(norm=True), 3)
    images, _ = batch(9)
    for step in range(1, 4):
        model(images)
        assert model.module[1].num_batches_tracked == step
        assert all(shell[1].num_batches_tracked == step for shell in model.shells)  # a copy of step - 1, and its own


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_batch_smaller_than_the_replicas_uses_fewer(replicated, count):
    plain = network(norm=False)
    model = replicated(copy.deepcopy(plain), 4)
    images, labels = batch(count)
    expected, found = gradients(plain, images, labels), gradients(model, images, labels)
    assert model(images).shape == (count, 5)
    assert all(torch.allclose(expected[n], found[n], atol=1e-6) for n in expected)


def test_eval_mode_reaches_every_replica(replicated):
    plain = network(norm=True)
    model = replicated(copy.deepcopy(plain), 3)
    images, _ = batch(6)
    model(images)
    model.eval()
    before = model.module[1].running_mean.clone()
    with torch.no_grad():
        outputs = model(images)
    assert torch.equal(model.module[1].running_mean, before)
    assert torch.allclose(outputs, model.module(images), atol=1e-6)
    model.train()
    model(images)
    assert not torch.equal(model.module[1].running_mean, before)


def test_no_grad_reaches_every_thread(replicated):
    model = replicated(network(norm=False), 3)
    images, _ = batch(6)
    with torch.no_grad():
        assert not model(images).requires_grad
    assert model(images).requires_grad


def test_autocast_reaches_every_thread(replicated):
    model = replicated(network(norm=False), 3)
    images, _ = batch(6)
    seen = []
    hooks = [
        replica.register_forward_hook(lambda m, i, o: seen.append(o.dtype)) for replica in (model.module, *model.shells)
    ]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(images)
    assert outputs.dtype == torch.bfloat16 and seen == [torch.bfloat16] * 3
    assert model(images).dtype == torch.float32
    for hook in hooks:
        hook.remove()


def test_the_shells_are_no_part_of_the_model(replicated):
    plain = network(norm=True)
    model = replicated(copy.deepcopy(plain), 4)
    model(batch(8)[0])
    assert list(model.state_dict()) == [f"module.{name}" for name in plain.state_dict()]
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters())
    assert len(list(model.parameters())) == len(list(plain.parameters()))


def test_an_error_in_a_replica_reaches_the_caller(replicated):
    model = replicated(network(norm=False), 2)
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 3, 5, 5))


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
    pairs = zip(plain.parameters(), model.module.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("other", [torch.ones(5), torch.tensor(2.0)])
def test_a_tensor_that_is_not_of_the_batch_is_one_line(replicated, other):
    with pytest.raises(UserError, match=r"nn.DataParallel cuts every .*; these are \[6, 4\], \[5?\]: use another"):
        replicated(Several(), 2)({"x": torch.ones(6, 4)}, scale=[None, other])


def test_replicas_with_different_structures_are_one_line(replicated):
    class Rows(nn.Linear):
        def forward(self, x):
            return list(super().forward(x))

    with pytest.raises(UserError, match=r"different numbers of tensors \(2, 1\)"):
        replicated(Rows(4, 3), 2)(torch.ones(3, 4))


# --- Autocast in nn.DataParallel's threads --------------------------------------------------------------------------

OTHER = torch.float16  # than a CPU thread's default, bfloat16


def in_a_fresh_thread(function, *arguments):
    """What a function returns in a thread that has seen nothing before."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def test_autocasts_dtype_belongs_to_a_thread():
    """The reason for ``in_this_autocast``: PyTorch's threads enter autocast, with the dtype that is theirs."""

    def as_pytorch_does(x):
        with torch.autocast("cpu", enabled=True):
            return (x @ x).dtype

    with torch.autocast("cpu", dtype=OTHER):
        assert in_a_fresh_thread(as_pytorch_does, torch.ones(2, 2)) == torch.bfloat16


def test_a_replica_computes_in_the_callers_precision():
    x = torch.ones(2, 2)

    def dtype(a, b):
        return (a @ b).dtype

    with torch.autocast("cpu", dtype=OTHER):
        reduced = in_this_autocast(dtype, "cpu")
    plain = in_this_autocast(dtype, "cpu")
    assert in_a_fresh_thread(reduced, x, x) == OTHER
    with torch.autocast("cpu", dtype=OTHER):
        assert plain(x, x) == torch.float32


def test_dataparallel_hands_its_replicas_the_callers_precision(monkeypatch):
    """Its threads are PyTorch's, which need GPUs; here a stand-in starts them."""

    def threads(self, replicas, inputs, kwargs):
        calls = zip(replicas, inputs, kwargs, strict=True)
        return [in_a_fresh_thread(lambda r=r, i=i, k=k: r(*i, **k)) for r, i, k in calls]

    monkeypatch.setattr(nn.DataParallel, "parallel_apply", threads)
    plain = nn.Linear(2, 2)
    model = DataParallel(plain)
    assert model.module is plain
    model.src_device_obj = torch.device("cpu")
    with torch.autocast("cpu", dtype=OTHER):
        outputs = model.parallel_apply([plain, plain], [(torch.ones(1, 2),)] * 2, [{}] * 2)
    assert [output.dtype for output in outputs] == [OTHER] * 2
