"""What the loaders of a script draw, put together for two ranks that live in one process (bench/observe/draws.py), and
what is made of it (coverage.py)."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from bench import mistakes
from bench.observe import Watch
from bench.observe import coverage as module
from bench.observe.coverage import coverage, data_of, first_steps, walks_of
from bench.observe.draws import Draws, held_by
from bench.observe.probe import NotObserved

IMAGES = 120
WHOLE = TensorDataset(torch.arange(IMAGES), torch.arange(IMAGES) % 7)
PART = Subset(WHOLE, range(20, 100))


def watched() -> tuple[Watch, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Watch(model, optimizer), optimizer


def part_of(make, rank: int, epochs: int = 2, set_epoch: bool = True, most: int | None = None) -> dict:
    """What a rank saw of the loader that ``make(rank)`` gives, and of its training. most: batches of an epoch."""
    torch.manual_seed(100 + rank)
    watch, optimizer = watched()
    loader = make(rank)
    for epoch in range(epochs):
        if set_epoch and hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for _ in itertools.islice(watch(loader), most):
            optimizer.step()
    part = watch.part()
    assert not watch.failed
    return part["data"]


def data(make, ranks: int = 2, **options) -> dict:
    """``observed["data"]`` of the ranks."""
    return data_of([part_of(make, rank, **options) for rank in range(ranks)])


def findings(data: dict, ranks: int = 2) -> list[str]:
    """With a question mark where they ask."""
    found = mistakes.find({"world_size": ranks, "data": data})
    return [finding.name + "?" * bool(finding.question) for finding in found]


def split(rank: int, seed: int = 0, **options) -> DataLoader:
    """As it should be."""
    return DataLoader(WHOLE, 8, sampler=DistributedSampler(WHOLE, 2, rank, seed=seed), **options)


class Own(Sampler):
    """These indices, shuffled, or as they are."""

    def __init__(self, indices, shuffled: bool = True):
        self.indices, self.shuffled = torch.as_tensor(list(indices)), shuffled

    def __iter__(self):
        return iter((self.indices[torch.randperm(len(self.indices))] if self.shuffled else self.indices).tolist())

    def __len__(self) -> int:
        return len(self.indices)


class Stream(IterableDataset):
    """A rank's share of a stream, or all of it."""

    def __init__(self, start: int, step: int):
        self.examples = torch.randn(IMAGES, 4, generator=numbers(1))[start::step]

    def __iter__(self):
        return iter(self.examples)


class File(TensorDataset):
    """A rank's own, with float labels."""

    def __init__(self, rank: int):
        values = torch.randn(60, 4, generator=numbers(rank))
        super().__init__(values, values.sum(1))


class Prefetching:
    """Your own loader around torch's."""

    def __init__(self, loader: DataLoader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


def own(indices, shuffled: bool = True) -> DataLoader:
    return DataLoader(WHOLE, 8, sampler=Own(indices, shuffled))


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def replacing(seed: int) -> DataLoader:
    """Draws with replacement."""
    return DataLoader(WHOLE, 8, sampler=WeightedRandomSampler(torch.ones(IMAGES), 60, generator=numbers(seed)))


def of_101(rank: int, drop_last: bool) -> DataLoader:
    """What two ranks cannot share out evenly."""
    data = TensorDataset(torch.arange(101))
    return DataLoader(data, 8, sampler=DistributedSampler(data, 2, rank, drop_last=drop_last))


RIGHT = {
    "split": split,
    "persistent workers": lambda rank: split(rank, num_workers=1, persistent_workers=True),
    "a batch sampler": lambda rank: DataLoader(
        WHOLE, batch_sampler=BatchSampler(Own(range(rank, IMAGES, 2)), 8, False)
    ),
    "a prefetcher": lambda rank: Prefetching(own(range(rank, IMAGES, 2))),
    "no collation": lambda rank: DataLoader(WHOLE, batch_size=None, sampler=DistributedSampler(WHOLE, 2, rank)),
    "own files": lambda rank: DataLoader(File(rank), 6, shuffle=True),
    "own subsets": lambda rank: DataLoader(Subset(WHOLE, range(rank, IMAGES, 2)), 6, shuffle=True),
    "one subset": lambda rank: DataLoader(PART, 8, sampler=DistributedSampler(PART, 2, rank)),
    "a subset of a subset": lambda rank: DataLoader(Subset(PART, range(rank, 80, 2)), 8, shuffle=True),
}
OTHERWISE = {
    "whole": (lambda rank: DataLoader(WHOLE, 8, shuffle=True), {}, ["whole-data"]),
    "rank 0's shard for all": (lambda rank: split(0), {}, ["whole-data"]),
    "another seed on each rank": (lambda rank: split(rank, seed=rank), {}, ["whole-data"]),
    "splits of another order": (
        lambda rank: DataLoader(random_split(WHOLE, [60, 60])[rank], 4, shuffle=True),
        {},
        ["whole-data"],
    ),
    "replacement, alike": (lambda rank: replacing(1), {}, ["whole-data"]),
    "replacement": (replacing, {}, ["whole-data?"]),
    "no set_epoch": (split, {"set_epoch": False}, ["no-reshuffle"]),
    "in order": (lambda rank: own(range(rank, IMAGES, 2), False), {}, ["no-reshuffle?"]),
    "a part of an epoch": (split, {"set_epoch": False, "most": 3}, ["no-reshuffle"]),
    "cut": (lambda rank: own(range(56 * rank, 56 * rank + 56)), {}, ["lost-remainder"]),
    "a fold": (lambda rank: own(range(rank, 96, 2)), {}, ["lost-remainder?"]),
    "a stream for all": (lambda rank: DataLoader(Stream(0, 1), 8), {"epochs": 1}, ["whole-data"]),
    "padding": (lambda rank: of_101(rank, False), {}, []),
    "a remainder dropped": (lambda rank: of_101(rank, True), {}, []),
    "a stream in its order": (lambda rank: DataLoader(Stream(rank, 2), 8), {}, []),
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_a_right_loader_draws_each_image_once(make):
    found = data(make)
    assert [epoch["never"] for epoch in found["epochs"]] == [0, 0] and found["never_seen"] == 0
    assert {epoch["most"] for epoch in found["epochs"]} == {1} and found["shared_in_a_step"] == 0
    assert findings(found) == []


@pytest.mark.parametrize(("make", "options", "names"), OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_wrong_is_found_and_what_may_be_meant_is_asked(make, options, names):
    assert findings(data(make, **options)) == names


def test_a_set_is_told_from_another_by_what_it_holds_and_is_not_copied():
    large = torch.zeros(1).expand(1 << 40)  # a copy would need 4 TB
    assert held_by({"x": large.view(1 << 20, 1 << 20).t()}) == held_by({"x": large.view(1 << 20, 1 << 20).t()})
    assert held_by([np.arange(9)]) != held_by([np.arange(1, 10)])
    assert held_by(torch.tensor(3)) != held_by(torch.tensor(4))


def test_validations_and_abandoned_loaders_are_not_the_training():
    watch, optimizer = watched()
    whole = DataLoader(WHOLE, 8)
    next(iter(watch(whole)))
    for epoch in range(2):
        loader = DataLoader(WHOLE, 8, sampler=DistributedSampler(WHOLE, 1, 0, seed=epoch))  # made again each time
        for _ in watch(loader):
            optimizer.step()
        for _ in watch(whole):
            pass
    found = data_of([watch.part()["data"]])
    assert len(found["epochs"]) == 2 and found["sampler"]["kind"] == "DistributedSampler"


def test_a_subset_that_is_cut_anew_for_each_epoch_counts_in_the_whole_set():
    watch, optimizer = watched()
    for epoch in range(3):
        order = torch.randperm(IMAGES, generator=numbers(epoch))
        for _ in watch(DataLoader(Subset(WHOLE, order.tolist()), 8)):
            optimizer.step()
    found = data_of([watch.part()["data"]])
    assert found["same_neighbours"] < 0.1 and found["num_images"] == IMAGES and found["never_seen"] == 0


class Endless:
    """Goes round and round, whatever the script calls an epoch."""

    def __init__(self, loader: DataLoader, told: bool):
        self.loader, self.told, self.batches = loader, told, self.rounds()

    def rounds(self):
        for number in itertools.count():
            self.loader.sampler.set_epoch(number * self.told)
            yield from self.loader

    def __iter__(self):
        return self.batches


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_that_the_loader_does_not_know_are_compared_and_not_counted(workers):
    right, wrong = (
        data(lambda rank, told=told: Endless(split(rank, num_workers=workers), told), most=12) for told in (True, False)
    )
    assert findings(right) == [] and findings(wrong) == ["no-reshuffle"]
    assert "epochs" not in right and right["shared_in_a_step"] == 0 and right["same_neighbours"] < 0.2


def test_chosen_images_are_the_whole_where_all_ranks_have_the_same():
    found = data(lambda rank: DataLoader(WHOLE, 10, sampler=SubsetRandomSampler(range(50, 100))), ranks=1)
    assert found["num_images"] == 50 and found["epochs"][0]["never"] == 0


def test_what_cannot_be_known_is_said():
    for make in (lambda rank: DataLoader({"a": 1}, sampler=["a"], batch_size=None), lambda rank: [{"text": "a"}]):
        with pytest.raises(NotObserved):
            data(make)
    early = data(split, most=2)
    assert set(early["unheard"]) == {"epochs"} and "epochs" not in early
    assert mistakes.unobserved_reasons({"data": early}, {})["lost-remainder"] == early["unheard"]["epochs"]


def test_a_torch_that_keeps_its_indices_elsewhere_is_said(monkeypatch):
    monkeypatch.delattr(_BaseDataLoaderIter, "_next_index")
    monkeypatch.setattr("torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data", lambda it: 1 / 0)
    watch, _ = watched()
    with pytest.raises(ZeroDivisionError):
        next(iter(watch(DataLoader(WHOLE, 8))))
    assert "_next_index" in str(watch.failed[watch.probe(Draws)])


def test_no_more_is_recorded_than_the_limit(monkeypatch):
    monkeypatch.setattr("bench.observe.draws.MOST_DRAWS", 100)
    part = part_of(split, 0, epochs=2)
    assert sum(len(step) for steps, _ in part["walks"] for step in steps) <= 100
    assert [whole for _, whole in part["walks"]] == [True, False]


def test_ranks_may_end_an_epoch_after_different_numbers_of_steps():
    """As under Join: each rank's epochs count, and not rank 0's for all."""
    walks = [[([np.arange(rank * 40, 40 + rank * 60)], True)] * 3 for rank in range(2)]
    found = coverage(walks, 100)
    assert found["never_seen"] == 0
    assert found["epochs"][0] == {"draws": 100, "never": 0, "repeated": 0, "most": 1, "by_one_rank": 0}


def test_no_more_than_the_first_epochs_and_so_many_draws_are_looked_at(monkeypatch):
    batch = np.zeros(10, np.int64)
    assert len(first_steps([batch] * 99, 2, [(0, 10), (10, 20), (20, 30), (30, 40)])) == 30
    monkeypatch.setattr(module, "MOST_DRAWS", 100)
    assert len(first_steps([batch] * 99, 2, [])) == 5
    found = coverage([walks_of([batch] * 5, [(0, 99)])], 10)
    assert "epochs" not in found and found["shared_in_a_step"] == 1


def test_epochs_that_are_left_early_are_compared_as_far_as_they_went():
    same, few = ([([np.arange(size)], False)] * 2 for size in (16, 4))
    assert coverage([same], 100)["same_neighbours"] == 1 and "epochs" not in coverage([same], 100)
    assert "same_neighbours" not in coverage([few], 100)
