"""bench/observe/draws.py: what the loaders of a script draw, put together for two ranks that live in one process."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
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
from bench.observe.coverage import data_of
from bench.observe.draws import Draws, held_by
from bench.observe.probe import Unheard
from tests.unit.observe.test_view import quiet

IMAGES = 120
WHOLE = TensorDataset(torch.arange(IMAGES), torch.arange(IMAGES) % 7)
ITS_OWN = _BaseDataLoaderIter._next_index


def part_of(make, rank: int, epochs: int = 3, set_epoch: bool = True, most: int | None = None) -> dict:
    """What a rank saw of the loader that ``make(rank)`` gives, and of its training. most: batches of an epoch."""
    torch.manual_seed(100 + rank)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, loader = quiet(Watch(model, optimizer)), make(rank)
    for epoch in range(epochs):
        if set_epoch and hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for _ in itertools.islice(watch(loader), most):
            optimizer.step()
    part = watch.part()
    assert not watch.failed
    assert _BaseDataLoaderIter._next_index is ITS_OWN
    return part["data"]


def data(make, ranks: int = 2, **options) -> dict:
    """``observed["data"]`` of the ranks."""
    return data_of([part_of(make, rank, **options) for rank in range(ranks)])


def said(make, **options) -> list[str]:
    """The findings; with a question mark where they ask."""
    found = mistakes.find({"world_size": 2, "data": data(make, **options)})
    return [finding.name + "?" * bool(finding.question) for finding in found]


def split(rank: int, size: int = 8, **options) -> DataLoader:
    """As it should be."""
    return DataLoader(WHOLE, size, sampler=DistributedSampler(WHOLE, 2, rank), **options)


class Own(Sampler):
    """These indices, shuffled, or as they are."""

    def __init__(self, indices, shuffled: bool = True):
        self.indices, self.shuffled = torch.as_tensor(list(indices)), shuffled

    def __iter__(self):
        return iter((self.indices[torch.randperm(len(self.indices))] if self.shuffled else self.indices).tolist())

    def __len__(self) -> int:
        return len(self.indices)


class Repeating(Own):
    """Each image three times, one after the other, over the ranks."""

    def __init__(self, rank: int, num_repeats: int):
        super().__init__(range(IMAGES))
        self.rank, self.num_repeats, self.epoch = rank, num_repeats, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(self.num_repeats)[self.rank :: 2][: IMAGES // 2].tolist())


class Blocks(Sampler):
    """The same batches in a new order."""

    def __init__(self, rank: int):
        self.batches = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(1))[rank::2].split(6)

    def __iter__(self):
        return iter([self.batches[i].tolist() for i in torch.randperm(len(self.batches))])

    def __len__(self) -> int:
        return len(self.batches)


class Telling(DistributedSampler):
    """Is told the epoch and does not care."""

    def __iter__(self):
        return iter(torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0))[self.rank :: 2].tolist())


class Stream(IterableDataset):
    """A rank's share of a stream, or all of it."""

    def __init__(self, start: int, step: int):
        self.examples = torch.randn(IMAGES, 4, generator=torch.Generator().manual_seed(1))[start::step]

    def __iter__(self):
        return iter(self.examples)


class Shuffling(Stream):
    """Asks for the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Prefetching:
    """A loader of one's own around torch's."""

    def __init__(self, loader: DataLoader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


def own_set(rank: int, noise: float = 0.0) -> DataLoader:
    """A rank's own file, with float labels, perhaps augmented."""
    values = torch.randn(60, 4, generator=torch.Generator().manual_seed(rank))

    class File(Dataset):
        def __init__(self):
            self.values = values

        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int):
            return values[index] + noise * torch.randn(4), values[index].sum()

    return DataLoader(File(), 6, shuffle=True)


class Shared(Sampler):
    """One list drawn with replacement, over the ranks: every image may come on any of them."""

    def __init__(self, rank: int, ranks: int):
        self.rank, self.ranks, self.number = rank, ranks, 0

    def __iter__(self):
        self.number += 1
        drawn = torch.randint(IMAGES, (IMAGES,), generator=torch.Generator().manual_seed(self.number))
        return iter(drawn[self.rank :: self.ranks].tolist())

    def __len__(self) -> int:
        return IMAGES // self.ranks


RIGHT = {
    "split": split,
    "workers": lambda rank: split(rank, num_workers=1),
    "persistent workers": lambda rank: split(rank, num_workers=1, persistent_workers=True),
    "a batch sampler": lambda rank: DataLoader(
        WHOLE, batch_sampler=BatchSampler(Own(range(rank, IMAGES, 2)), 8, False)
    ),
    "a prefetcher": lambda rank: Prefetching(DataLoader(WHOLE, 8, sampler=Own(range(rank, IMAGES, 2)))),
    "no collation": lambda rank: DataLoader(WHOLE, batch_size=None, sampler=DistributedSampler(WHOLE, 2, rank)),
    "own files": own_set,
    "own files, augmented": lambda rank: own_set(rank, 0.1),
    "own subsets": lambda rank: DataLoader(Subset(WHOLE, range(rank, IMAGES, 2)), 6, shuffle=True),
    "one subset": lambda rank: DataLoader(
        Subset(WHOLE, range(20, 100)), 8, sampler=DistributedSampler(range(80), 2, rank)
    ),
    "a subset of a subset": lambda rank: DataLoader(
        Subset(Subset(WHOLE, range(20, 100)), range(rank, 80, 2)), 8, shuffle=True
    ),
}
WRONG = {
    "whole": (lambda rank: DataLoader(WHOLE, 8, shuffle=True), {}, ["whole-data"]),
    "rank 0's shard for all": (lambda rank: split(0), {}, ["whole-data"]),
    "another order on each rank": (
        lambda rank: DataLoader(WHOLE, 8, sampler=DistributedSampler(WHOLE, 2, rank, seed=rank)), {}, ["whole-data"]
    ),
    "splits of another order": (
        lambda rank: DataLoader(random_split(WHOLE, [60, 60])[rank], 4, shuffle=True), {}, ["whole-data"]
    ),
    "replacement, alike": (lambda rank: seeded_loader(1), {}, ["whole-data"]),
    "replacement": (lambda rank: seeded_loader(rank), {}, ["whole-data?"]),
    "repeated": (lambda rank: DataLoader(WHOLE, 8, sampler=Repeating(rank, 3)), {}, ["whole-data?"]),
    "repeated on each rank": (lambda rank: DataLoader(WHOLE, 8, sampler=Repeating(rank, 2)), {}, ["whole-data?"]),
    "no set_epoch": (split, {"set_epoch": False}, ["no-reshuffle"]),
    "told in vain": (lambda rank: DataLoader(WHOLE, 8, sampler=Telling(WHOLE, 2, rank)), {}, ["no-reshuffle"]),
    "in order": (lambda rank: DataLoader(WHOLE, 8, sampler=Own(range(rank, IMAGES, 2), False)), {}, ["no-reshuffle?"]),
    "blocks": (lambda rank: DataLoader(WHOLE, batch_sampler=Blocks(rank)), {}, ["no-reshuffle?"]),
    "a part of an epoch": (split, {"set_epoch": False, "most": 3}, ["no-reshuffle"]),
    "cut": (lambda rank: DataLoader(WHOLE, 8, sampler=Own(range(56 * rank, 56 * rank + 56))), {}, ["lost-remainder"]),
    "a fold": (lambda rank: DataLoader(WHOLE, 8, sampler=Own(range(rank, 96, 2))), {}, ["lost-remainder?"]),
    "a stream for all": (lambda rank: DataLoader(Stream(0, 1), 8), {"epochs": 1}, ["whole-data"]),
    "a stream split": (lambda rank: DataLoader(Stream(rank, 2), 8), {"epochs": 1}, []),
    "a stream in its order": (lambda rank: DataLoader(Stream(rank, 2), 8), {}, []),
    "a stream that shuffles": (lambda rank: DataLoader(Shuffling(rank, 2), 8), {}, ["no-reshuffle"]),
}  # fmt: skip


def seeded_loader(seed: int) -> DataLoader:
    """Draws with replacement."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(WHOLE, 8, sampler=WeightedRandomSampler(torch.ones(IMAGES), 60, generator=generator))


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_a_right_loader_draws_each_image_once(make):
    found = data(make)
    assert [epoch["never"] for epoch in found["epochs"]] == [0, 0, 0] and found["never_seen"] == 0
    assert {epoch["most"] for epoch in found["epochs"]} == {1} and found["shared_in_a_step"] == 0
    assert mistakes.find({"world_size": 2, "data": found}) == []


@pytest.mark.parametrize(("make", "options", "names"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found_and_what_may_be_meant_is_asked(make, options, names):
    assert said(make, **options) == names


def test_a_list_with_replacement_over_four_ranks_is_asked_about_and_not_in_one_process():
    def found(ranks: int) -> list:
        seen = data(lambda rank: DataLoader(WHOLE, 6, sampler=Shared(rank, ranks)), ranks=ranks)
        return mistakes.find({"world_size": ranks, "data": seen})

    assert [finding.name for finding in found(4) if finding.question] == ["whole-data"] and len(found(4)) == 1
    assert found(1) == []


def test_a_set_is_told_from_another_by_what_it_holds_and_is_not_copied():
    large = torch.zeros(1).expand(1 << 40)  # a copy would need 4 TB
    assert held_by({"x": large.view(1 << 20, 1 << 20).t()}) == held_by({"x": large.view(1 << 20, 1 << 20).t()})
    assert held_by([np.arange(9)]) != held_by([np.arange(1, 10)]) and held_by(torch.tensor(3)) != held_by(
        torch.tensor(4)
    )


def test_a_finding_says_what_is_the_matter():
    def finding(name: str):
        make, options, _ = WRONG[name]
        return mistakes.find({"world_size": 2, "data": data(make, **options)})[0]

    overlap = finding("another order on each rank")
    assert "were not drawn" in overlap.evidence and "never seen" in overlap.consequence
    assert "with 0, 1, 2" in finding("told in vain").evidence and "set_epoch(" not in finding("told in vain").remedy
    assert "epoch 0 each time" in finding("no set_epoch").evidence
    assert "own rank" in finding("rank 0's shard for all").remedy


def test_validations_and_abandoned_loaders_are_not_the_training():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = quiet(Watch(model, optimizer))
    whole = DataLoader(WHOLE, 8)
    next(iter(watch(whole)))
    for epoch in range(2):
        loader = DataLoader(WHOLE, 8, sampler=DistributedSampler(WHOLE, 1, 0, seed=epoch))  # made anew each time
        for _ in watch(loader):
            optimizer.step()
        for _ in watch(whole):
            pass
    found = data_of([watch.part()["data"]])
    assert len(found["epochs"]) == 2 and found["sampler"]["kind"] == "DistributedSampler"


def test_a_subset_that_is_cut_anew_for_each_epoch_counts_in_the_whole_set():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = quiet(Watch(model, optimizer))
    for epoch in range(3):
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch))
        for _ in watch(DataLoader(Subset(WHOLE, order.tolist()), 8)):
            optimizer.step()
    found = data_of([watch.part()["data"]])
    assert found["same_neighbours"] < 0.1 and found["num_images"] == IMAGES and found["never_seen"] == 0


class Endless:
    """Goes round and round, whatever the script calls an epoch."""

    def __init__(self, loader: DataLoader, told: bool):
        self.loader, self.told, self.round, self.batches = loader, told, 0, iter(())

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.loader.sampler.set_epoch(self.round * self.told)
            self.round, self.batches = self.round + 1, iter(self.loader)
            return next(self.batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_that_the_loader_does_not_know_are_compared_and_not_counted(workers):
    def found(told: bool) -> dict:
        return data(lambda rank: Endless(split(rank, num_workers=workers), told), most=12)

    right = found(True)
    assert mistakes.find({"world_size": 2, "data": right}) == []
    assert "epochs" not in right and right["shared_in_a_step"] == 0 and right["same_neighbours"] < 0.2
    assert [f.name for f in mistakes.find({"world_size": 2, "data": found(False)})] == ["no-reshuffle"]


def test_a_stream_that_comes_round_again_is_no_overlap():
    class Round(Stream):
        def __iter__(self):
            for number in itertools.count():
                order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(number))
                yield from self.examples[order[self.start :: 2]]

        def __init__(self, start: int):
            super().__init__(0, 1)
            self.start = start

    assert said(lambda rank: DataLoader(Round(rank), 10), most=12) == []


def test_chosen_images_are_the_whole_where_all_ranks_have_the_same():
    found = data(lambda rank: DataLoader(WHOLE, 10, sampler=SubsetRandomSampler(range(50, 100))), ranks=1)
    assert found["num_images"] == 50 and found["epochs"][0]["never"] == 0


def test_what_cannot_be_known_is_said():
    with pytest.raises(Unheard, match="no whole numbers"):
        data(lambda rank: DataLoader({"a": 1, "b": 2}, sampler=["a", "b"], batch_size=None))
    with pytest.raises(Unheard, match="not seen to come from"):
        data(lambda rank: [{"text": "a"}])
    early = data(split, most=2)
    assert early["unheard"] == {"epochs": "no epoch was seen to its end"} and "epochs" not in early
    seen = mistakes.unheard({"data": early}, {"steps": "no step"})
    assert seen["lost-remainder"] == "no epoch was seen to its end" and seen["uneven-steps"] == "no step"


def test_a_torch_that_keeps_its_indices_elsewhere_is_said(monkeypatch):
    monkeypatch.delattr(_BaseDataLoaderIter, "_next_index")
    monkeypatch.setattr("torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data", lambda it: 1 / 0)
    model = nn.Linear(1, 1)
    watch = quiet(Watch(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    with pytest.raises(ZeroDivisionError):
        next(iter(watch(DataLoader(WHOLE, 8))))
    assert "_next_index" in str(watch.failed[watch.probe(Draws)])


def test_no_more_is_recorded_than_the_limit(monkeypatch):
    monkeypatch.setattr("bench.observe.draws.MOST_DRAWS", 100)
    part = part_of(split, 0, epochs=2)
    assert sum(len(step) for steps, _ in part["walks"] for step in steps) <= 100
    assert [whole for _, whole in part["walks"]] == [True, False]


def test_an_unusual_index_is_read():
    found = data(lambda rank: DataLoader(WHOLE, batch_sampler=[torch.arange(60) * 2 + rank]), epochs=1)
    assert found["epochs"][0]["never"] == 0
