"""Over how many targets losses are means, and their mean between two reports."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy as imported_before

from bench.observe import Watch
from bench.observe.metrics import LOOKED_AT, Losses, targets_of

LABELS = torch.tensor([0, 1, 2, -100, -100, 1])


def watched(loss_of, labels=LABELS, steps: int = 2, train: bool = True) -> Losses:
    """What is observed of a rank that trains with a loss."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Watch(model, optimizer)
    losses = watch.probe(Losses)
    for rows in watch([torch.randn(len(labels), 4)] * steps):
        optimizer.zero_grad()
        with torch.set_grad_enabled(train):
            loss = loss_of(model(rows), labels)
        if train:
            loss.backward()
        optimizer.step()
    watch.report()
    return losses


MEANS = {
    "mean": lambda out, y: functional.cross_entropy(out, y),
    "imported before": lambda out, y: imported_before(out, y),
    "negative log likelihood": lambda out, y: functional.nll_loss(out.log_softmax(1), y),
    "another index": lambda out, y: functional.cross_entropy(out, y.where(y >= 0, 2), ignore_index=2),
    "sum over the own": lambda out, y: functional.cross_entropy(out, y, reduction="sum") / (y >= 0).sum(),
    "one by one": lambda out, y: functional.cross_entropy(out, y, reduction="none").sum() / (y >= 0).sum(),
    "scaled": lambda out, y: 1024 * functional.cross_entropy(out, y),
    "chosen elements": lambda out, y: functional.mse_loss(out[y >= 0], torch.ones(int((y >= 0).sum()), 3)),
    "masked": lambda out, y: functional.binary_cross_entropy_with_logits(out[:, 0][y >= 0], (y[y >= 0] > 0).float()),
}
FEWER = torch.tensor([0, -100, 2, -100, -100, -100])


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_the_own_targets_weighs_them_by_their_number(name):
    parts = [watched(MEANS[name], labels).targets() for labels in (LABELS, FEWER)]
    found = targets_of(parts)
    assert found["ratio"] == pytest.approx(3 if name == "another index" else 2, rel=1e-3)
    assert targets_of([parts[0], parts[0]])["ratio"] == 1


def of_two_parts(share: float):
    return lambda out, y: sum(each * functional.cross_entropy(out, y) for each in (share, 1 - share))


EQUAL = {
    "sum over all": lambda out, y: functional.cross_entropy(out, y, reduction="sum") / 6,
    "a weighted mean": lambda out, y: functional.cross_entropy(out, y) * (y >= 0).sum() / 6,
    "two parts": lambda out, y: of_two_parts(0.3)(out, y.clamp(0)),
    "all elements": lambda out, y: functional.mse_loss(out, torch.zeros_like(out)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_targets_that_weigh_the_same_on_all_ranks(name):
    parts = [watched(EQUAL[name], labels).targets() for labels in (LABELS, FEWER)]
    assert targets_of(parts)["ratio"] == pytest.approx(1, rel=1e-4)


def test_what_is_no_loss_of_the_training_is_not_counted():
    mixed_up = [watched(of_two_parts(share)).targets() for share in (0.1, 0.8)]  # labels
    assert targets_of(mixed_up)["ratio"] == pytest.approx(1, rel=1e-4)
    assert watched(MEANS["mean"], train=False).targets() is None
    uneven = watched(lambda out, y: (functional.cross_entropy(out, y, reduction="none") ** 2).mean())
    assert uneven.targets() is None  # a focal loss weighs its targets by itself
    logged = watched(lambda out, y: out.square().mean() + 0 * functional.cross_entropy(out, y).detach())
    assert logged.targets() is None
    assert len(watched(MEANS["mean"], steps=LOOKED_AT + 5).targets()) == LOOKED_AT
