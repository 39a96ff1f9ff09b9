"""bench/observe/streams.py: random states that ranks share, seen without drawing a number."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bench.observe import Watch
from bench.observe.probe import Unheard
from bench.observe.streams import augmentation_of, global_states, random_of, used
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
        if self.kind.startswith("seeded"):
            random.seed(index if self.kind == "seeded by example" else 5)
        draw = {"random": random.random, "numpy": np.random.rand, "held": self.transforms[0].generator.random,
                "nothing": float, "seeded alike": random.random, "seeded by example": random.random,
                "seeded in vain": float, "shared": lambda: globals()["shared"].random()}  # fmt: skip
        noise = draw.get(self.kind, lambda: torch.rand(()).item())()
        sizes = index % 3 if self.kind == "as often as the image is large" else 0
        return torch.tensor([noise, *(torch.rand(sizes).tolist() * 0)]), index


class Holder:
    """A transform with a generator of its own."""

    def __init__(self):
        self.generator = np.random.default_rng(3)


class SeededStream(IterableDataset):
    """Seeds NumPy each time that it is walked."""

    def __iter__(self):
        np.random.seed(3)
        yield from (torch.tensor(np.random.rand(), dtype=torch.float32) for _ in range(12))


class Stream(IterableDataset):
    """Shuffles as it goes."""

    def __iter__(self):
        yield from torch.randperm(12).float()


def seeded(seed: int) -> None:
    """All three generators."""
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


def part_of(make, seed: int, dropout: float = 0.0, epochs: int = 1, begin=lambda epoch: None) -> dict:
    """A rank's part: the loader is made with all generators seeded. begin: called before each epoch."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Dropout(dropout))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = quiet(Watch(model, optimizer))
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
    """From which generators ranks that are seeded so augment alike."""
    return augmentation_of([part_of(make, seed)["augmentation"] for seed in seeds])["generators"]


def again(make, begin=lambda epoch: None) -> list[str]:
    """The generators from which several epochs of a rank draw the same numbers."""
    return augmentation_of([part_of(make, 1, epochs=3, begin=begin)["augmentation"]])["again"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["torch", "random", "numpy"])
def test_epochs_that_are_seeded_alike_repeat_themselves(kind, workers):
    """In the process before each epoch; in workers by worker_init_fn, as they start."""
    seeds = {"alike": lambda epoch, worker: 7 + worker, "with epoch": lambda epoch, worker: 7 + worker + 100 * epoch}

    def found(how: str) -> list[str]:
        now = []

        def begin(epoch: int) -> None:
            now.append(epoch)
            if not workers:
                seeded(seeds[how](epoch, 0))

        init = {"worker_init_fn": lambda worker: seeded(seeds[how](now[-1], worker))} if workers else {}
        return again(lambda: DataLoader(Noisy(kind), 3, num_workers=workers, **init), begin)

    assert found("alike") == [kind] and found("with epoch") == []


TWISTERS = {
    "Random": random.Random,
    "RandomState": np.random.RandomState,
    "Generator": lambda seed: np.random.Generator(np.random.MT19937(seed)),
}


@pytest.mark.parametrize("make", TWISTERS.values(), ids=TWISTERS)
def test_a_generator_that_each_epochs_worker_gets_a_copy_of_repeats_itself(make):
    def found(workers: int, seed) -> list[str]:
        data = Noisy("held")
        data.transforms[0].generator = make(1)

        def begin(epoch: int) -> None:
            if seed:
                data.transforms[0].generator = make(seed(epoch))

        return again(lambda: DataLoader(data, 3, num_workers=workers), begin)

    name = "dataset.transforms[0].generator"
    assert found(1, None) == [name] and found(0, None) == []
    assert found(0, lambda epoch: 5) == [name] and found(1, lambda epoch: epoch) == []


def test_a_generator_of_the_module_or_of_a_closure_is_seen(monkeypatch):
    name, generator = f"{__name__}.shared", random.Random(3)
    monkeypatch.setitem(globals(), "shared", generator)
    assert again(lambda: DataLoader(Noisy("shared"), 3, num_workers=1)) == [name]
    monkeypatch.delitem(globals(), "shared")
    data, own = Noisy("nothing"), np.random.RandomState(3)
    loader = DataLoader(
        data, 3, num_workers=1, collate_fn=lambda batch: torch.tensor([b[1] + own.rand() for b in batch])
    )
    assert again(lambda: loader) == ["collate_fn.own"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_constant_seed_within_a_fetch_is_found_and_one_by_example_is_not_known(workers):
    assert again(lambda: DataLoader(Noisy("seeded alike"), 3, num_workers=workers)) == ["random"]
    with pytest.raises(Unheard, match="random"):
        again(lambda: DataLoader(Noisy("seeded by example"), 3, shuffle=True, num_workers=workers))
    with pytest.raises(Unheard, match="no random number was drawn"):
        again(lambda: DataLoader(Noisy("seeded in vain"), 3, num_workers=workers))


@pytest.mark.parametrize("stays", [False, True])
def test_a_stream_that_seeds_itself_as_it_begins_repeats_itself(stays):
    data = SeededStream()
    assert again(lambda: DataLoader(data, 3, num_workers=1, persistent_workers=stays)) == ["numpy"]


@pytest.mark.parametrize("numbers", [1, 623, 624, 625, 100_000])
@pytest.mark.parametrize("fresh", [True, False])
def test_drawing_is_told_from_seeding_however_many_numbers_are_drawn(numbers, fresh):
    seeded(5)
    if not fresh:
        random.random(), np.random.rand()
    before = global_states()
    random.getrandbits(32 * numbers), np.random.bytes(4 * numbers)
    drawn = global_states()
    assert {name: only for name, (_, _, only) in used(before, drawn).items()} == {"random": True, "numpy": True}
    seeded(6)
    random.getrandbits(32 * numbers), np.random.bytes(4 * numbers)
    other = used(drawn, global_states())
    assert [other[name][2] for name in ("random", "numpy")] == [False, False]


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
