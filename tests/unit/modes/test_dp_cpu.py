"""CpuDataParallel of bench/modes/dp.py does on CPU replicas what nn.DataParallel does on GPUs."""

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


@pytest.mark.parametrize(("num_replicas", "count"), [(1, 12), (2, 12), (3, 12), (3, 7), (4, 1), (4, 3), (4, 5)])
def test_a_training_follows_one_process(replicated, num_replicas, count):
    """Outputs in the order of the images, gradients and ten steps, each with the weights that the optimizer has just
    changed; a batch smaller than the replicas uses fewer."""
    plain = network(norm=False)
    model = replicated(copy.deepcopy(plain), num_replicas)
    images, labels = batch(count)
    assert torch.allclose(model(images), plain(images), atol=1e-6)
    expected, found = gradients(plain, images, labels), gradients(model, images, labels)
    assert max(float((expected[n] - found[n]).abs().max()) for n in expected) <= 1e-6
    for one in (plain, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(one(images), labels).backward()
            optimizer.step()
    pairs = zip(plain.parameters(), model.module.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= 1e-5


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


def test_the_shells_are_no_part_of_the_model(replicated):
    plain = network(norm=True)
    model = replicated(copy.deepcopy(plain), 4)
    model(batch(8)[0])
    assert list(model.state_dict()) == [f"module.{name}" for name in plain.state_dict()]
    sizes = [[p.numel() for p in each.parameters()] for each in (model, plain)]
    assert sizes[0] == sizes[1]


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


# --- Autocast in nn.DataParallel's threads --------------------------------------------------------------------------

OTHER = torch.float16  # than a CPU thread's default, bfloat16


def in_a_fresh_thread(function, *arguments):
    """What a function returns in a thread that has seen nothing before."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def test_a_replica_computes_in_the_callers_precision():
    """PyTorch's threads enter autocast with the dtype that is theirs."""

    def dtype(a, b):
        return (a @ b).dtype

    def as_pytorch_does(x):
        with torch.autocast("cpu", enabled=True):
            return dtype(x, x)

    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=OTHER):
        assert in_a_fresh_thread(as_pytorch_does, x) == torch.bfloat16
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
