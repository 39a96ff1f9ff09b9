"""bench/workload/activation_checkpointing.py: the same training as without it, with fewer saved activations."""

import copy

import pytest
import torch
import torchvision.models as tv
from torch import nn

from bench.errors import UserError
from bench.modes.dp import CpuDataParallel
from bench.workload.activation_checkpointing import checkpoint_blocks
from tests.small_resnets import narrow


class Odd(nn.Module):
    """It reads a buffer that it changes, takes its input by name, and returns a dict."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 4), nn.Dropout()
        self.norm = nn.BatchNorm1d(4, momentum=None)  # a mean over all batches, which it counts
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("nothing", None)

    def forward(self, item=None):
        self.scale *= 1.5
        return {"x": self.dropout(self.norm(self.layer(item["x"])) * self.scale)}


class Odds(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Odd() for _ in range(2))

    def forward(self, x):
        item = {"x": x}
        for block in self.blocks:
            item = block(item=item)
        return item["x"]


@pytest.mark.parametrize(("make", "shape", "blocks"), [
    (lambda: narrow(4), (4, 3, 16, 16), 8),
    (lambda: tv.squeezenet1_1(num_classes=4), (4, 3, 32, 32), 8),  # with dropout
    (Odds, (4, 4), 2),
])  # fmt: skip
def test_weights_and_statistics_are_bit_for_bit_the_same(make, shape, blocks):
    torch.manual_seed(0)
    plain = make()
    recomputed = copy.deepcopy(plain)
    checkpoint_blocks(recomputed, "MODEL")
    copied = copy.deepcopy(recomputed)  # as for an average of the weights
    assert sum(getattr(module, "recomputed", False) for module in copied.modules()) == blocks
    saved = []
    for model in (plain, recomputed, copied):
        torch.manual_seed(1)
        optimizer, sizes = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
        for _ in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(shape)
            with torch.autograd.graph.saved_tensors_hooks(
                lambda x, sizes=sizes: sizes.append(x.nbytes) or x, lambda x: x
            ):
                loss = nn.functional.cross_entropy(model(inputs), torch.arange(4))
            loss.backward()
            optimizer.step()
        saved.append(sum(sizes))
        with torch.no_grad():
            model(torch.zeros(shape))  # nothing to recompute: its statistics count once
    for other in (recomputed, copied):
        assert list(plain.state_dict()) == list(other.state_dict())
        assert all(map(torch.equal, plain.state_dict().values(), other.state_dict().values()))
    assert saved[1] == saved[2] < saved[0]


class Dropped(nn.Module):
    """It keeps what its dropout let through in each computation of a chunk."""

    def __init__(self):
        super().__init__()
        self.layer, self.kept = nn.Linear(64, 64), {}

    def forward(self, x):
        dropped = nn.functional.dropout(nn.functional.dropout(x + 1, 0.1), 0.1)
        self.kept.setdefault(x.sum().item(), []).append(dropped != 0)
        return self.layer(dropped)


def test_replicas_in_one_process_compute_their_blocks_again_with_the_same_random_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Sequential(*(nn.Sequential(Dropped(), nn.ReLU()) for _ in range(2))))
    checkpoint_blocks(model, "MODEL")
    parallel = CpuDataParallel(model, 2, 2)
    replicas = [model, *parallel.shells]
    for _ in range(10):
        parallel(torch.randn(2048, 64)).sum().backward()
    kept = [pair for each in replicas for m in each.modules() if isinstance(m, Dropped) for pair in m.kept.values()]
    assert len(kept) == 40 and all(len(pair) == 2 and torch.equal(*pair) for pair in kept)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), nn.Linear(2, 2)])
def test_a_model_without_blocks_is_refused(model):
    with pytest.raises(UserError, match=r"ACTIVATION_CHECKPOINTING=1.*MODEL=mine"):
        checkpoint_blocks(model, "mine")
