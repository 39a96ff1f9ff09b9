"""A Watch in one process: what it finds of model and optimizer, what it says of its use, and that it breaks nothing."""

import os
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from bench.errors import UserError
from bench.observe import Watch, ranks, watch
from bench.observe.probe import NotObserved, listen
from bench.observe.ranks import Meeting, launched
from bench.observe.weights import Norms, checksums, tensors_of, weights_of


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


def train(seen: Watch, model: nn.Module, *optimizers) -> None:
    """Some steps on random rows."""
    for rows in seen([torch.randn(4, 3) for _ in range(4)]):
        loss = model(rows).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def names(seen: Watch) -> list[str]:
    found = seen.report()
    assert seen not in watch.exits  # nothing is said at the end of the process
    return [finding.name + "?" * bool(finding.question) for finding in found]


def test_wrong_use_is_refused():
    model, loader = net(), torch.utils.data.DataLoader([1, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    early, seen = Watch(), Watch(model, optimizer)
    wrong = [
        lambda: Watch(model),
        lambda: Watch(optimizer, model),
        lambda: Watch(loader, optimizer),
        lambda: Watch(model, loader),
        lambda: Watch(model, torch.optim.lr_scheduler.StepLR(optimizer, 1)),
        lambda: Watch(model, optimizer, expect=("no-such",)),
        lambda: next(iter(early(loader))),  # before it follows a model
        lambda: seen(nn.Linear(1, 1)),
        lambda: seen.metric(top1="high"),
    ]
    for use in wrong:
        with pytest.raises(UserError):
            use()
    assert early.report() == seen.report() == []


@pytest.mark.parametrize("place", ["probe", "join"])
def test_a_probe_or_a_join_that_fails_costs_its_own_mistake_alone(monkeypatch, capsys, place):
    if place == "probe":
        monkeypatch.setattr(Norms, "trained", lambda *_: 1 / 0)
    else:
        monkeypatch.setitem(Norms.joins, "norm", lambda parts: 1 / 0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Watch(model, optimizer)
    train(seen, model, optimizer)
    assert names(seen) == []
    observed, unobserved = capsys.readouterr().out.split("not observed")
    assert "local-norm" in unobserved and "ZeroDivisionError" in unobserved and "host-sync" in observed


def test_without_a_report_the_end_of_the_process_says_what_was_seen(capsys):
    model = net()
    seen = Watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for rows in seen([torch.randn(4, 3)] * 4):
        model(rows).square().mean().item()
    watch.at_exit()
    assert "host-sync" in capsys.readouterr().err and not watch.exits
    watch.at_exit()
    assert capsys.readouterr().err == ""


PARAMETERS = {
    "the head alone": (lambda model: model[2].parameters(), 0.1, ["forgotten-parameters?"]),
    "biases alone": (lambda model: (model[0].bias, model[2].bias), 0.1, ["forgotten-parameters"]),
    "a frozen backbone": (lambda model: model[0].requires_grad_(False) and model[2].parameters(), 0.1, []),
    "a rate of zero": (lambda model: model.parameters(), 0.0, ["forgotten-parameters"]),
    "another model's": (lambda model: net().parameters(), 0.1, ["stale-optimizer"]),
}


@pytest.mark.parametrize(("chosen", "lr", "found"), PARAMETERS.values(), ids=PARAMETERS)
def test_which_parameters_are_trained(chosen, lr, found):
    model = net()
    optimizer = torch.optim.SGD(chosen(model), lr=lr)
    seen = Watch(model, optimizer)
    train(seen, model, optimizer)
    assert names(seen) == found


@pytest.mark.parametrize(("lr", "found"), [(0.4, []), (0.1, ["lr-not-scaled"]), (0.2, ["lr-not-scaled?"])])
def test_the_learning_rate_beside_the_recipe(lr, found):
    model = net()
    groups = [{"params": model[0].parameters(), "lr": lr}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=9.0)
    seen = Watch(model, optimizer, lr=0.1, lr_batch=1)  # a batch is four rows
    train(seen, model, optimizer)
    assert names(seen) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_checksums_tell_any_bit(dtype):
    tensor = torch.arange(1, 50).to(dtype).reshape(7, 7)
    other = tensor.clone()
    assert torch.equal(checksums([tensor]), checksums([other.t().contiguous().t()]))
    other.view(-1)[3] = -other.view(-1)[3]
    assert not torch.equal(checksums([tensor]), checksums([other]))
    other = tensor.clone()
    other[0, 0], other[0, 1] = tensor[0, 0] * 2, tensor[0, 1]
    assert not torch.equal(checksums([tensor]), checksums([other]))


def weights_part(*rows: int, looks=None) -> dict:
    """A rank whose one parameter has these checksums, the last at the end."""
    looks = looks or [(0, number) for number in range(len(rows) - 1)]
    sums = torch.tensor(rows).reshape(-1, 1, 1).repeat(1, 1, 2).numpy()
    return {"looks": looks, "steps": [*range(len(looks)), len(looks)], "sums": sums, "names": ["fc.weight"]}


def test_the_first_step_after_which_replicas_differ():
    same = weights_of([weights_part(1, 2, 3, 4)] * 2)
    assert same["apart_at"] is None
    apart = weights_of([weights_part(1, 2, 3, 4), weights_part(1, 2, 5, 6)])
    assert apart["apart_at"] == 2 and apart["layers"] == ["fc.weight"] and not apart["together_again"]
    averaged = weights_of([weights_part(1, 2, 3, 4), weights_part(1, 2, 5, 4)])
    assert averaged["apart_at"] == 2 and averaged["together_again"]
    shorter = weights_part(1, 2, 9, 4, looks=[(0, 0), (0, 1), (1, 1)])
    longer = weights_part(1, 2, 7, 9, 4, looks=[(0, 0), (0, 1), (0, 2), (1, 1)])
    assert weights_of([shorter, longer])["apart_at"] is None  # where both have looked, they are the same
    with pytest.raises(NotObserved):  # different models
        weights_of([weights_part(1), weights_part(1) | {"names": ["other"]}])


def test_tensors_of_modules_averages_and_dicts():
    average = torch.optim.swa_utils.AveragedModel(net())
    assert len(tensors_of(net())) == len(tensors_of(average)) == 4
    assert len(tensors_of({"b": {"w": torch.ones(2)}, "a": torch.ones(1), "n": torch.tensor(3)})) == 2


def meet(limit_s: float, present=(0, 1), ended: str = "") -> dict:
    """What each rank of two gets of a meeting at a store. ended: how those have ended that are not present."""
    store, results = dist.HashStore(), {}

    def live(rank: int) -> None:
        try:
            meeting = Meeting(store, "here", rank, 2, limit_s, lambda other: "" if other in present else ended)
            results[rank] = meeting.join_parts(rank + 1, sum)
        except NotObserved as why:
            results[rank] = str(why)

    threads = [threading.Thread(target=live, args=(rank,)) for rank in present]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_ranks_meet_at_a_store_in_pieces(monkeypatch):
    monkeypatch.setattr(ranks, "PIECE", 7)
    assert meet(60) == {0: 3, 1: 3}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_named_and_one_that_has_ended_is_not_waited_for(rank):
    (late,) = meet(0.2, (rank,)).values()
    assert f"rank {1 - rank}" in late and "0.2 s" in late
    (gone,) = meet(60, (rank,), ended="OSError: disk").values()
    assert f"rank {1 - rank}" in gone and "OSError: disk" in gone


def test_what_a_launcher_says_of_itself():
    assert launched({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}) == ("OMPI_COMM_WORLD_SIZE", 4, 3)
    assert launched({"WORLD_SIZE": "x"}) is launched({}) is None


def test_what_a_stranger_puts_into_the_store_runs_nothing(tmp_path):
    """Anyone who reaches the store's port can set a rank's part."""

    class Part:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    store = dist.HashStore()
    Meeting(store, "here", 1, 2, 60, lambda rank: "").write_part("part1", [Part()])
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        Meeting(store, "here", 0, 2, 60, lambda rank: "").read_part("part1", 1)
    assert not (tmp_path / "ran").exists()
    part = {"a": [1, 2.5, None, True, "é", b"x", (1,), {2}, frozenset({3}), range(4)], 5: NotObserved("why"),
            "b": np.arange(6.0).reshape(2, 3), "c": np.float32(0.5), "d": np.array(["x", "y"]),
            "e": np.bool_(True)}  # fmt: skip
    Meeting(store, "there", 1, 2, 60, lambda rank: "").write_part("part1", part)
    found = Meeting(store, "there", 0, 2, 60, lambda rank: "").read_part("part1", 1)
    assert repr(found) == repr(part)


class Owner:
    def double(self, number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return 2 * number


def test_listeners_come_and_go_in_any_order_and_hear_what_raises():
    said, own = [], vars(Owner)["double"]
    first = listen(Owner, "double", lambda arguments, options: said.append(arguments[1:]))
    second = listen(Owner, "double", lambda arguments, options: said.append)
    assert Owner().double(3) == 6 and said == [(3,), 6]
    first()
    assert Owner().double(number=1) == 2 and said[2:] == [2]
    third = listen(Owner, "double", lambda arguments, options: None, lambda error, arguments: said.append(error))
    with pytest.raises(ValueError):
        Owner().double(-1)
    assert isinstance(said[3], ValueError)
    third()
    second()
    assert vars(Owner)["double"] is own


def test_somebody_elses_stand_in_stays(monkeypatch):
    end = listen(Owner, "double", lambda arguments, options: None)
    ours = Owner.double
    monkeypatch.setattr(Owner, "double", lambda self, number: ours(self, number) + 1)
    end()
    assert Owner().double(3) == 7
    monkeypatch.undo()
    Owner.double = ours.__wrapped__
