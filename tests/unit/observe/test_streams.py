"""bench/observe/streams.py: random states that ranks share, seen without drawing a number."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bench.observe import Watch
from bench.observe.probe import Unheard
from bench.observe.streams import augmentation_of, random_of
from tests.unit.observe.test_view import quiet


class Noisy(Dataset):
    """Numbers of one generator beside a label."""

    def __init__(self, kind: str):
        self.kind, self.transforms = kind, [Holder()]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        if self.kind == "by example":
            torch.manual_seed(index)
        draw = {"random": random.random, "numpy": np.random.rand, "held": self.transforms[0].generator.random,
                "nothing": float}  # fmt: skip
        noise = draw.get(self.kind, lambda: torch.rand(()).item())()
        sizes = index % 3 if self.kind == "as often as the image is large" else 0
        return torch.tensor([noise, *(torch.rand(sizes).tolist() * 0)]), index


class Holder:
    """A transform with a generator of its own."""

    def __init__(self):
        self.generator = np.random.default_rng(3)


class Stream(IterableDataset):
    """Shuffles as it goes."""

    def __iter__(self):
        yield from torch.randperm(12).float()


def seeded(seed: int) -> None:
    """All three generators."""
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


def part_of(make, seed: int, dropout: float = 0.0, epochs: int = 1) -> dict:
    """A rank's part: the loader is made with all generators seeded."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Dropout(dropout))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = quiet(Watch(model, optimizer))
    seeded(seed)
    loader = make()
    for _ in range(epochs):
        for batch in watch(loader):
            values = batch[0] if isinstance(batch, list) else batch
            model(values.reshape(-1, 1)).sum().backward()
            optimizer.step()
    return watch.part()


def generators(make, *seeds: int) -> list[str]:
    """From which generators ranks that are seeded so augment alike."""
    return augmentation_of([part_of(make, seed)["augmentation"] for seed in seeds])["generators"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["torch", "random", "numpy"])
def test_ranks_with_the_same_seed_augment_alike(kind, workers):
    def make():
        return DataLoader(Noisy(kind), 3, num_workers=workers)

    assert generators(make, 1, 1) == [kind] and generators(make, 1, 2) == []


def test_one_sampled_number_of_draws_more_or_less_is_the_same_stream():
    """Torch's crop draws until one fits, and how often depends on the image."""
    shards = iter([range(0, 12, 2), range(1, 12, 2)])
    data = Noisy("as often as the image is large")

    def make():
        return DataLoader(data, 1, sampler=next(shards))

    assert generators(make, 1, 1) == ["torch"]


def test_a_generator_that_a_transform_holds_is_seen():
    assert generators(lambda: DataLoader(Noisy("held"), 3), 1, 2) == ["dataset.transforms[0].generator"]


def test_workers_of_two_ranks_that_are_seeded_alike_are_found_and_own_seeds_by_example_are_not():
    ranks = iter(range(2))

    def overlapping():
        rank = next(ranks)
        return DataLoader(Noisy("numpy"), 3, num_workers=2, worker_init_fn=lambda w: np.random.seed(w + rank))

    assert generators(overlapping, 1, 2) == ["numpy"]  # rank 0's second worker has what rank 1's first has
    shards = iter([range(0, 12, 2), range(1, 12, 2)])
    assert generators(lambda: DataLoader(Noisy("by example"), 3, sampler=next(shards)), 1, 1) == []


def test_an_order_that_is_drawn_is_no_augmentation_and_no_draw_is_said():
    with pytest.raises(Unheard, match="no random number was drawn"):
        generators(lambda: DataLoader(Noisy("nothing"), 3, shuffle=True), 1, 1)
    parts = [part_of(lambda: DataLoader(Stream(), 3), 1)["augmentation"] for _ in range(2)]
    assert augmentation_of(parts)["of_a_stream"]  # the order is drawn where its examples are
    parts = [{"spawned": 5}, {"spawned": 5}]
    with pytest.raises(Unheard, match="several ranks start from one seed"):
        augmentation_of(parts)
    assert augmentation_of([{"spawned": 5}, {"spawned": 6}])["streams"] == ["5", "6"]


def test_a_step_that_draws_the_same_numbers_is_seen():
    def parts(dropout: float, *seeds: int) -> list[dict]:
        data = TensorDataset(torch.arange(12.0))
        return [part_of(lambda: DataLoader(data, 3, shuffle=True), seed, dropout)["random"] for seed in seeds]

    assert random_of(parts(0.5, 1, 1))["streams"] == ["0", "0"]
    assert random_of(parts(0.5, 1, 2))["streams"] == ["0", "1"]
    with pytest.raises(Unheard):
        random_of(parts(0.0, 1, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_no_number_is_drawn_by_the_watch(workers):
    def numbers() -> tuple:
        return torch.rand(1).item(), np.random.rand(), random.random()

    loader = DataLoader(Noisy("torch"), 3, shuffle=True, num_workers=workers)
    part_of(lambda: loader, 7, dropout=0.5)
    watched = numbers()
    seeded(7)
    model = nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.5))
    seeded(7)
    for values, _ in loader:
        model(values.reshape(-1, 1))
    assert numbers() == watched
