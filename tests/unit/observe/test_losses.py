"""Over how many targets losses are means, and their mean between two reports."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy as imported_before

from bench.observe import Watch
from bench.observe.metrics import LOOKED_AT, Losses, targets_of
from bench.observe.probe import heard

LABELS = torch.tensor([0, 1, 2, -100, -100, 1])


@pytest.fixture(autouse=True)
def nothing_left():
    """Every function of torch's is its own again at the end of a test."""
    before = set(heard)
    yield
    assert set(heard) == before


def watched(loss_of, labels=LABELS, steps: int = 2, train: bool = True) -> Losses:
    """What is heard of a rank that trains with a loss."""
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
    "module": lambda out, y: nn.CrossEntropyLoss()(out, y),
    "imported before": lambda out, y: imported_before(out, y),
    "negative log likelihood": lambda out, y: functional.nll_loss(out.log_softmax(1), y),
    "smoothed": lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1),
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


EQUAL = {
    "sum over all": lambda out, y: functional.cross_entropy(out, y, reduction="sum") / 6,
    "a weighted mean": lambda out, y: functional.cross_entropy(out, y) * (y >= 0).sum() / 6,
    "two parts": lambda out, y: sum(w * functional.cross_entropy(out, y.clamp(0)) for w in (0.3, 0.7)),
    "all elements": lambda out, y: functional.mse_loss(out, torch.zeros_like(out)),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_targets_that_weigh_the_same_on_all_ranks(name):
    found = targets_of([watched(EQUAL[name], labels).targets() for labels in (LABELS, FEWER)])
    assert found["ratio"] == pytest.approx(1, rel=1e-4)


def test_mixed_up_labels_weigh_as_much_together_whatever_each_weighs():
    def mixed(share):
        return lambda out, y: share * functional.cross_entropy(out, y) + (1 - share) * functional.cross_entropy(out, y)

    assert targets_of([watched(mixed(share)).targets() for share in (0.1, 0.8)])["ratio"] == pytest.approx(1, rel=1e-4)


def test_what_is_no_loss_of_the_training_is_not_counted():
    assert watched(lambda out, y: functional.cross_entropy(out, y), train=False).targets() is None
    uneven = watched(lambda out, y: (functional.cross_entropy(out, y, reduction="none") ** 2).mean())
    assert uneven.targets() is None  # a focal loss weighs its targets by itself
    logged = watched(lambda out, y: out.square().mean() + 0 * functional.cross_entropy(out, y).detach())
    assert logged.targets() is None
    assert len(watched(MEANS["mean"], steps=LOOKED_AT + 5).targets()) == LOOKED_AT


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:FutureWarning", "ignore:.*torch.jit.trace:DeprecationWarning")
def test_what_torch_traces_or_transforms_is_left_alone():
    model = nn.Linear(4, 3)

    def loss_of(parameters, row, label):
        return functional.cross_entropy(torch.func.functional_call(model, parameters, (row[None],)), label[None])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Watch(model, optimizer)
    for rows in watch([torch.randn(6, 4)] * 2):
        parameters = dict(model.named_parameters())
        torch.vmap(torch.func.grad(loss_of), (None, 0, 0))(parameters, rows, LABELS.clamp(0))
        torch.jit.trace(lambda out: functional.cross_entropy(out, LABELS), rows[:, :3])
        functional.cross_entropy(model(rows), LABELS).backward()
        optimizer.step()
    losses = watch.probe(Losses)
    watch.report()
    assert losses not in watch.failed and {len(losses.targets()), *(n for n, _ in losses.targets().values())} == {2, 4}


def test_the_mean_loss_between_two_reports():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = Watch(model, optimizer)
    seen = []
    for epoch in range(3):
        batches = [torch.randn(rows, 4) for rows in (6, 6, 2)]
        for number, rows in enumerate(watch(batches)):
            loss = model(rows).square().mean()
            (loss / 2 if epoch == 2 else loss).backward()
            if epoch < 2 or number:  # the third accumulates
                optimizer.step()
            seen.append((loss.item(), len(rows)))
        watch.metric(loss=0.0)
    trained = watch.probe(Losses).part()["trained"]
    watch.report()
    for epoch in range(2):
        own = seen[3 * epoch : 3 * epoch + 3]
        assert trained["loss"][epoch] == pytest.approx(sum(loss for loss, _ in own) / 3)
        assert trained["by_examples"][epoch] == pytest.approx(sum(loss * rows for loss, rows in own) / 14)
    assert trained["examples"] == [14] * 3 and trained["loss"][2] is None
