"""bench/observe/coverage.py: what samplers drew, of the bench's own stream and of torch's samplers."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from bench import mistakes
from bench.observe import coverage as module
from bench.observe.coverage import coverage, first_steps, walks_of
from bench.workload.sharding import global_batches, shard, steps_of_epochs

EPOCHS = 3


def findings(data: dict) -> list[str]:
    """What the detectors say of an observed run that has only this."""
    return [finding.name for finding in mistakes.find({"world_size": 2, "data": data})]


def stream(num_images: int, batch: int, ranks: int, seed=1, same: bool = False) -> dict:
    """The bench's own stream over some epochs; same: epoch 0's order for ever."""
    ends = steps_of_epochs(num_images, EPOCHS, batch * ranks)
    draws = global_batches(num_images, seed, batch * ranks)
    if same:
        order = next(global_batches(num_images, seed, num_images))
        draws = iter(np.tile(order, EPOCHS + 1)[: ends[-1] * batch * ranks].reshape(-1, batch * ranks))
    batches = [next(draws) % num_images for _ in range(ends[-1])]
    steps = [[shard(step, rank, 1, ranks) for step in batches] for rank in range(ranks)]
    epochs = list(zip([0, *ends], ends, strict=False))
    return coverage([walks_of(rank, epochs) for rank in steps], num_images)


def samplers(num_images: int, batch: int, make, ranks: int = 2) -> dict:
    """Epochs of torch samplers: make(rank) -> a sampler, perhaps with set_epoch."""
    walks = []
    for rank in range(ranks):
        sampler, mine = make(rank), []
        for epoch in range(EPOCHS):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            mine.append(([np.array(indices) for indices in BatchSampler(sampler, batch, drop_last=False)], True))
        walks.append(mine)
    return coverage(walks, num_images)


@pytest.mark.parametrize(("num_images", "batch", "ranks"), [(1437, 32, 2), (100, 16, 2), (96, 8, 4), (40, 20, 2)])
def test_the_own_stream_covers_every_epoch(num_images, batch, ranks):
    data = stream(num_images, batch, ranks)
    assert len(data["epochs"]) == EPOCHS and data["never_seen"] == 0
    assert data["epochs"][0]["never"] == 0 and data.get("shared_in_a_step", 0) == 0
    assert findings(data) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_images", [101, 64, 70])
def test_a_distributed_sampler_that_pads_or_drops_is_right(num_images, drop_last):
    data = samplers(num_images, 8, lambda rank: DistributedSampler(range(num_images), 2, rank, drop_last=drop_last))
    assert findings(data) == []


def test_the_same_order_every_epoch_is_found():
    assert findings(stream(1437, 32, 2, same=True)) == ["no-reshuffle"]
    sequential = samplers(100, 8, lambda rank: range(rank, 100, 2))
    assert sequential["same_neighbours"] == 1 and findings(sequential) == ["no-reshuffle"]


def test_the_whole_set_on_every_rank_is_found_with_and_without_the_same_order():
    own = samplers(100, 8, lambda rank: DistributedSampler(range(100), 1, 0, seed=100 * rank))
    assert own["epochs"][0] == {"draws": 200, "never": 0, "repeated": 100, "most": 2, "by_one_rank": 0}
    assert findings(own) == ["whole-data"]
    same = samplers(100, 8, lambda rank: DistributedSampler(range(100), 1, 0))
    assert same["shared_in_a_step"] == 1 and findings(same) == ["whole-data"]


class Cut:
    """A rank's share in one piece, less what fills no batch; shuffled in each epoch."""

    def __init__(self, rank: int, size: int):
        self.images = np.arange(rank * size, (rank + 1) * size)

    def __iter__(self):
        return iter(torch.as_tensor(self.images)[torch.randperm(len(self.images))].tolist())

    def __len__(self) -> int:
        return len(self.images)


def test_images_that_no_epoch_draws_are_found():
    data = samplers(70, 8, lambda rank: Cut(rank, 32))
    assert data["never_seen"] == 6 and findings(data) == ["lost-remainder"]
    assert findings(samplers(100, 8, lambda rank: Cut(rank, 32))) == ["lost-remainder"]  # a global batch and more


def test_no_more_than_the_first_epochs_and_so_many_draws_are_looked_at(monkeypatch):
    batch = np.zeros(10, np.int64)
    assert len(first_steps([batch] * 99, 2, [(0, 10), (10, 20), (20, 30), (30, 40)])) == 30
    monkeypatch.setattr(module, "MOST_DRAWS", 100)
    assert len(first_steps([batch] * 99, 2, [])) == 5
    data = coverage([walks_of([batch] * 5, [(0, 99)])], 10)
    assert "epochs" not in data and data["shared_in_a_step"] == 1


def test_ranks_may_end_an_epoch_after_different_numbers_of_steps():
    """As under Join: each rank's epochs count, and not rank 0's for all."""
    data = samplers(60, 8, lambda rank: torch.randperm(40).tolist() if rank else (40 + torch.randperm(20)).tolist())
    assert data["never_seen"] == 0 and data["epochs"][0] == {
        "draws": 60, "never": 0, "repeated": 0, "most": 1, "by_one_rank": 0,
    }  # fmt: skip


def test_epochs_that_are_left_early_are_compared_as_far_as_they_went():
    same = [([np.arange(8)] * 2, False), ([np.arange(8)] * 2, False)]
    assert coverage([same], 100)["same_neighbours"] == 1 and "epochs" not in coverage([same], 100)
    few = [([np.arange(4)], False), ([np.arange(4)], False)]
    assert "same_neighbours" not in coverage([few], 100)


def test_a_rank_that_draws_an_image_again_is_told_from_ranks_that_share_it():
    torch.manual_seed(0)
    replacing = samplers(100, 10, lambda rank: torch.randint(100, (50,)).tolist())["epochs"][0]
    whole = samplers(100, 10, lambda rank: torch.randperm(100).tolist())["epochs"][0]
    assert replacing["by_one_rank"] > 10 and whole["by_one_rank"] == 0 and whole["repeated"] == 100
