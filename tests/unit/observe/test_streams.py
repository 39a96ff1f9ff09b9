"""bench/observe/streams.py: random states that ranks share, seen without drawing a number."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bench.observe import Watch
from bench.observe.probe import NotObserved
from bench.observe.streams import augmentation_of, global_states, used


class Noisy(Dataset):
    """Numbers of one generator beside a label."""

    def __init__(self, kind: str, generator=None):
        self.kind, self.generator = kind, generator

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        if self.kind.startswith("seeded"):
            random.seed(index if self.kind == "seeded by example" else 5)
        drawn = []
        if self.kind in ("torch", "all"):
            drawn += [torch.rand(()).item()]
        if self.kind in ("numpy", "all"):
            drawn += [np.random.rand()]
        if self.kind in ("random", "all", "seeded alike", "seeded by example"):
            drawn += [random.random()]
        if self.kind == "held":
            drawn += [self.generator.random()]
        return torch.tensor([sum(drawn, 0.0)]), index


class Stream(IterableDataset):
    """Shuffles as it goes."""

    def __iter__(self):
        yield from torch.randperm(12).float()


def seeded(seed: int) -> None:
    for seed_one in (torch.manual_seed, np.random.seed, random.seed):
        seed_one(seed)


def part_of(make, seed: int, epochs: int = 1, begin=lambda epoch: None) -> dict:
    """A rank's part: the loader is made with all generators seeded. begin: called before each epoch."""
    model = nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch(model, optimizer)
    seeded(seed)
    loader = make()
    for epoch in range(epochs):
        begin(epoch)
        for batch in watch(loader):
            values = batch[0] if isinstance(batch, list) else batch
            model(values.reshape(-1, 1)).sum().backward()
            optimizer.step()
    return watch.part()


def generators(make, *seeds: int) -> list[str]:
    """From which generators ranks that are seeded so augment equally."""
    return augmentation_of([part_of(make, seed)["augmentation"] for seed in seeds])["generators"]


def again(make, begin=lambda epoch: None) -> list[str]:
    """The generators from which several epochs of a rank draw the same numbers."""
    return augmentation_of([part_of(make, 1, epochs=2, begin=begin)["augmentation"]])["again"]


@pytest.mark.parametrize("kind", ["torch", "random", "numpy"])
def test_epochs_that_are_seeded_alike_repeat_themselves(kind):
    def found(factor: int) -> list[str]:
        return again(lambda: DataLoader(Noisy(kind), 3), lambda epoch: seeded(7 + factor * epoch))

    assert found(0) == [kind] and found(100) == []


def test_workers_that_are_seeded_alike_in_each_epoch_repeat_themselves():
    def found(factor: int) -> list[str]:
        now = []
        options = {"num_workers": 2, "worker_init_fn": lambda worker: seeded(7 + worker + factor * now[-1])}
        return again(lambda: DataLoader(Noisy("all"), 3, **options), now.append)

    assert sorted(found(0)) == ["numpy", "random", "torch"] and found(100) == []


TWISTERS = {
    "Random": random.Random,
    "RandomState": np.random.RandomState,
    "Generator": lambda seed: np.random.Generator(np.random.MT19937(seed)),
}


@pytest.mark.parametrize("make", TWISTERS.values(), ids=TWISTERS)
def test_a_generator_that_each_epochs_worker_gets_a_copy_of_repeats_itself(make):
    def found(workers: int, seed) -> list[str]:
        data = Noisy("held", make(1))

        def begin(epoch: int) -> None:
            if seed:
                data.generator = make(seed(epoch))

        return again(lambda: DataLoader(data, 3, num_workers=workers), begin)

    name = "dataset.generator"
    assert found(1, None) == [name] and found(0, None) == []
    assert found(0, lambda epoch: 5) == [name] and found(1, lambda epoch: epoch) == []
    assert generators(lambda: DataLoader(Noisy("held", make(3)), 3), 1, 2) == [name]  # the same on two ranks


@pytest.mark.parametrize("workers", [0, 1])
def test_a_constant_seed_within_a_fetch_is_found_and_one_by_example_is_not_known(workers):
    assert again(lambda: DataLoader(Noisy("seeded alike"), 3, num_workers=workers)) == ["random"]
    with pytest.raises(NotObserved):
        again(lambda: DataLoader(Noisy("seeded by example"), 3, shuffle=True, num_workers=workers))
    with pytest.raises(NotObserved):
        again(lambda: DataLoader(Noisy("seeded in vain"), 3, num_workers=workers))


def test_drawing_is_told_from_seeding_however_many_numbers_are_drawn():
    """A state holds 624 numbers."""

    def draw(numbers: int) -> dict:
        random.getrandbits(32 * numbers)
        np.random.bytes(4 * numbers)
        return global_states()

    for numbers in (1, 624, 625, 100_000):
        seeded(5)
        fresh, first, second = global_states(), draw(numbers), draw(numbers)
        for before, after in ((fresh, first), (first, second)):
            assert {name: only for name, (_, _, only) in used(before, after).items()} == {"random": True, "numpy": True}
    seeded(6)
    other = used(second, draw(1))
    assert [other[name][2] for name in ("random", "numpy")] == [False, False]


@pytest.mark.parametrize(("kind", "workers"), [("torch", 0), ("torch", 1), ("random", 0), ("numpy", 1)])
def test_ranks_with_the_same_seed_augment_alike(kind, workers):
    def make():
        return DataLoader(Noisy(kind), 3, num_workers=workers)

    assert generators(make, 1, 1) == [kind] and generators(make, 1, 2) == []


def test_a_worker_of_one_rank_that_has_the_seed_of_another_ranks_worker_is_found():
    ranks = iter(range(2))

    def overlapping():
        rank = next(ranks)
        return DataLoader(Noisy("numpy"), 3, num_workers=2, worker_init_fn=lambda w: np.random.seed(w + rank))

    assert generators(overlapping, 1, 2) == ["numpy"]  # rank 0's second worker has what rank 1's first has


def test_an_order_that_is_drawn_is_no_augmentation_and_no_draw_is_said():
    with pytest.raises(NotObserved):
        generators(lambda: DataLoader(Noisy("nothing"), 3, shuffle=True), 1, 1)
    parts = [part_of(lambda: DataLoader(Stream(), 3), 1)["augmentation"] for _ in range(2)]
    assert augmentation_of(parts)["of_a_stream"]  # the order is drawn where its examples are
    with pytest.raises(NotObserved):
        augmentation_of([{"spawned": 5}, {"spawned": 5}])
    assert augmentation_of([{"spawned": 5}, {"spawned": 6}])["streams"] == ["5", "6"]
