"""A Watch in one process: what it finds of model and optimizer, what it says of its use, and that it breaks nothing."""

import os
import pickle
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from bench.errors import UserError
from bench.observe import Watch, gradients, ranks, watch, weights
from bench.observe.gradients import gradient_of
from bench.observe.probe import Unheard, heard, listen
from bench.observe.ranks import Meeting, launched
from bench.observe.weights import Norms, checksums, tensors_of, weights_of


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


def train(seen: Watch, model: nn.Module, *optimizers, steps: int = 4, scaler=None) -> None:
    """Some steps on random rows."""
    for rows in seen([torch.randn(4, 3) for _ in range(steps)]):
        loss = model(rows).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        (scaler.scale(loss) if scaler else loss).backward()
        for optimizer in optimizers:
            (scaler.step(optimizer) if scaler else optimizer.step())
        if scaler:
            scaler.update()


def names(seen: Watch) -> list[str]:
    return [finding.name + "?" * bool(finding.question) for finding in seen.report()]


@pytest.fixture(autouse=True)
def nothing_left():
    """Every stand-in has gone at the end of a test, and nothing is said at the end of the process."""
    before = {key: len(function.listeners) for key, function in heard.items()}, list(watch.exits)
    yield
    assert ({key: len(function.listeners) for key, function in heard.items()}, watch.exits) == before


# --- how it is used -----------------------------------------------------------------------------------------------


def test_wrong_use_is_one_line():
    model, loader = net(), torch.utils.data.DataLoader([1, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong = {
        "the optimizer is missing": lambda: Watch(model),
        "the model comes first": lambda: Watch(optimizer, model),
        "a loader, which goes to watch": lambda: Watch(loader, optimizer),
        "the second is the optimizer, and not DataLoader": lambda: Watch(model, loader),
        "and not StepLR": lambda: Watch(model, torch.optim.lr_scheduler.StepLR(optimizer, 1)),
        "is none of": lambda: Watch(model, optimizer, expect=("no-such",)),
    }
    for words, use in wrong.items():
        with pytest.raises(UserError, match=words):
            use()
    early = Watch()
    with pytest.raises(UserError, match="call follow"):
        next(iter(early(loader)))
    assert early.report() == []
    seen = Watch(model, optimizer)
    with pytest.raises(UserError, match="a Linear does not"):
        seen(nn.Linear(1, 1))
    with pytest.raises(UserError, match=r"takes numbers: top1"):
        seen.metric(top1="high")
    assert seen.report() == seen.report() == []


def test_several_and_wrapped_optimizers_are_watched():
    model = net()
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2]))

    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    seen = Watch(model, [first, Wrapper(second)])
    train(seen, model, first, second)
    assert names(seen) == [] and seen.optimizers == [first, second]


def test_a_probe_that_fails_says_so_and_the_script_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(Norms, "trained", lambda *_: 1 / 0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Watch(model, optimizer)
    train(seen, model, optimizer)
    assert names(seen) == []
    assert "local-norm (the probe failed: ZeroDivisionError: division by zero)" in capsys.readouterr().out


def test_a_join_that_fails_costs_what_it_joins_alone(monkeypatch, capsys):
    monkeypatch.setitem(Norms.joins, "norm", lambda parts: parts[0]["no such"])
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Watch(model, optimizer)
    train(seen, model, optimizer)
    seen.report()
    out = capsys.readouterr().out
    assert "local-norm (the probe failed: KeyError: 'no such')" in out and "host-sync" in out.split("not observed")[0]


def test_what_is_expected_is_listed_as_that(capsys):
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    seen = Watch(model, optimizer, expect="forgotten-parameters")
    train(seen, model, optimizer)
    assert seen.report() == []
    out = capsys.readouterr().out
    assert out.startswith("known mistakes found: 0\n") and "\nexpected: forgotten-parameters\n" in out


def test_without_a_report_the_end_of_the_process_says_what_was_seen(capsys):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Watch(model, optimizer)
    for rows in seen([torch.randn(4, 3)] * 4):
        loss = model(rows).square().mean()
        loss.item()
    watch.at_exit()
    err = capsys.readouterr().err
    assert "report was not called on rank 0" in err and "host-sync: the host waits" in err and not watch.exits
    watch.at_exit()
    assert capsys.readouterr().err == ""


# --- parameters and optimizers ------------------------------------------------------------------------------------


def test_parameters_that_nobody_trains():
    model = net()
    head, biases = model[2].parameters(), [p for name, p in model.named_parameters() if "weight" in name]
    for parameters, found in ((head, ["forgotten-parameters?"]), (biases, ["forgotten-parameters"])):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        seen = Watch(model, optimizer)
        train(seen, model, optimizer)
        assert names(seen) == found
    for layer in model[:2]:
        layer.requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    seen = Watch(model, optimizer)
    train(seen, model, optimizer)
    assert names(seen) == []


def test_an_optimizer_without_effect_and_one_of_another_model():
    model = net()
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = Watch(model, still)
    train(seen, model, still)
    assert names(seen) == ["forgotten-parameters"]
    stale = torch.optim.SGD(net().parameters(), lr=0.1)
    seen = Watch(model, stale)
    train(seen, model, stale)
    assert names(seen) == ["stale-optimizer"]


def test_a_loss_with_weights_of_its_own_is_no_stale_optimizer():
    model, loss = net(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    seen = Watch(model, optimizer)
    for rows in seen([torch.randn(4, 3)] * 4):
        optimizer.zero_grad()
        loss(model(rows)).mean().backward()
        optimizer.step()
    assert names(seen) == []


@pytest.mark.parametrize(("lr", "found"), [(0.4, []), (0.1, ["lr-not-scaled"]), (0.2, ["lr-not-scaled?"])])
def test_the_learning_rate_beside_the_recipe(lr, found):
    model = net()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": lr}, {"params": model[2].parameters()}], lr=9.0
    )
    seen = Watch(model, optimizer, lr=0.1, lr_batch=1)  # a batch is four rows
    train(seen, model, optimizer)
    assert names(seen) == found


def test_a_rate_that_still_rises_is_not_judged(capsys):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = Watch(model, optimizer, lr=0.1, lr_batch=1)
    for number, rows in enumerate(seen([torch.randn(4, 3)] * 4)):
        optimizer.param_groups[0]["lr"] = 0.01 * (number + 1)
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()
    assert names(seen) == []
    assert "lr-not-scaled (the learning rate was still rising at the end)" in capsys.readouterr().out


# --- gradients ----------------------------------------------------------------------------------------------------


def looks_of(seen: Watch) -> list[dict]:
    return seen.probe(gradients.Gradients).looks


def test_a_scaled_loss_is_seen_through_and_a_skipped_step_is_no_step():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    seen = Watch(model, optimizer)
    for number, rows in enumerate(seen([torch.randn(4, 3) for _ in range(4)])):
        optimizer.zero_grad()
        loss = model(rows).square().mean() * (float("inf") if number == 0 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(looks_of(seen)) == 2
    part = {"looks": looks_of(seen), "passes": 1, "kind": "mean"}
    assert gradient_of([part])["over_mean"] == pytest.approx(1, abs=1e-5)
    assert names(seen) == []


def test_gradients_that_are_summed_averaged_or_kept():
    rng = torch.Generator().manual_seed(1)
    own = [torch.randn(9, generator=rng).numpy() for _ in range(2)]
    mean = (own[0] + own[1]) / 2

    def joined(*finals) -> dict:
        parts = [{"looks": [{0: pair}], "passes": 1, "kind": "mean"} for pair in zip(own, finals, strict=True)]
        return gradient_of(parts)

    assert joined(mean, mean)["over_mean"] == pytest.approx(1) and joined(mean, mean)["exchanged"]
    assert joined(2 * mean, 2 * mean)["over_mean"] == pytest.approx(2)
    assert not joined(*own)["exchanged"] and not joined(own[0] / 2, own[1] / 2)["exchanged"]


# --- weights ------------------------------------------------------------------------------------------------------


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
    with pytest.raises(Unheard, match="different models"):
        weights_of([weights_part(1), weights_part(1) | {"names": ["other"]}])


def test_tensors_of_modules_averages_and_dicts():
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    assert len(tensors_of(model)) == len(tensors_of(average)) == 4
    assert len(tensors_of({"b": {"w": torch.ones(2)}, "a": torch.ones(1), "n": torch.tensor(3)})) == 2
    assert weights.looked_at(16) and not weights.looked_at(17) and weights.looked_at(64)


# --- the ranks ----------------------------------------------------------------------------------------------------


def meet(store, limit_s: float, present=(0, 1), join=sum, ended: str = "") -> dict:
    """What each rank of two gets of a meeting at a store. ended: how those have ended that are not present."""
    results = {}

    def live(rank: int) -> None:
        try:
            meeting = Meeting(store, "here", rank, 2, limit_s, lambda other: "" if other in present else ended)
            results[rank] = meeting.hold(rank + 1, join)
        except Unheard as why:
            results[rank] = str(why)

    threads = [threading.Thread(target=live, args=(rank,)) for rank in present]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_meet_at_a_store_in_pieces(monkeypatch):
    monkeypatch.setattr(ranks, "PIECE", 7)
    assert meet(dist.HashStore(), 60) == {0: 3, 1: 3}


def test_a_rank_that_does_not_come_is_named():
    assert meet(dist.HashStore(), 0.2, present=(0,)) == {0: "rank 1 did not call it within 0.2 s"}
    assert meet(dist.HashStore(), 0.2, present=(1,)) == {1: "rank 0 did not call it within 0.2 s"}


def test_a_rank_that_has_ended_is_not_waited_for():
    why = "OSError: disk, after 2 epochs, 9 steps"
    began = time.monotonic()
    for rank in (0, 1):
        assert meet(dist.HashStore(), 60, (rank,), ended=why) == {rank: f"rank {1 - rank} has ended ({why})"}
    assert time.monotonic() - began < 30


def test_what_a_launcher_says_of_itself():
    assert launched({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}) == ("OMPI_COMM_WORLD_SIZE", 4, 3)
    assert launched({"WORLD_SIZE": "x"}) is launched({}) is None


def test_several_processes_without_a_group(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Watch(model, optimizer)
    train(seen, model, optimizer)
    assert names(seen) == ["no-group"] and capsys.readouterr().out == ""  # rank 0 prints


# --- listening ----------------------------------------------------------------------------------------------------


class Owner:
    def double(self, number: int) -> int:
        return 2 * number


def test_listeners_come_and_go_in_any_order():
    said, own = [], vars(Owner)["double"]
    first = listen(Owner, "double", lambda arguments, options: said.append(arguments[1:]))
    second = listen(Owner, "double", lambda arguments, options: said.append)
    assert Owner().double(3) == 6 and said == [(3,), 6]
    first()
    assert Owner().double(number=1) == 2 and said[2:] == [2]
    second()
    assert vars(Owner)["double"] is own


def test_a_call_that_raises_is_heard_and_raises():
    said, refused = [], ValueError("no number")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Owner, "double", Mock(side_effect=refused))
        ends = [listen(Owner, "double", lambda arguments, options: said.append),
                listen(Owner, "double", lambda arguments, options: None, lambda *call: said.append(call))]  # fmt: skip
        with pytest.raises(ValueError, match="no number"):
            Owner.double(3)
        for end in ends:
            end()
    assert said == [(refused, (3,))]


def test_somebody_elses_stand_in_stays(monkeypatch):
    end = listen(Owner, "double", lambda arguments, options: None)
    ours = Owner.double
    monkeypatch.setattr(Owner, "double", lambda self, number: ours(self, number) + 1)
    end()
    assert Owner().double(3) == 7
    monkeypatch.undo()
    Owner.double = ours.__wrapped__


def test_what_a_stranger_puts_into_the_store_runs_nothing(tmp_path):
    """Whoever reaches the store's port can set a rank's part."""

    class Part:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    store = dist.HashStore()
    Meeting(store, "here", 1, 2, 60, lambda rank: "").leave("part1", [Part()])
    with pytest.raises(pickle.UnpicklingError, match=r"names posix.mkdir"):
        Meeting(store, "here", 0, 2, 60, lambda rank: "").take("part1", 1)
    assert not (tmp_path / "ran").exists()
    part = {"a": [1, 2.5, None, True, "é", b"x", (1,), {2}, frozenset({3}), range(4)], 5: Unheard("why"),
            "b": np.arange(6.0).reshape(2, 3), "c": np.float32(0.5), "d": np.array(["x", "y"]),
            "e": np.bool_(True)}  # fmt: skip
    Meeting(store, "there", 1, 2, 60, lambda rank: "").leave("part1", part)
    found = Meeting(store, "there", 0, 2, 60, lambda rank: "").take("part1", 1)
    assert repr(found) == repr(part)
