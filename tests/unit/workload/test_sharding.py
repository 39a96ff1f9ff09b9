"""bench/workload/sharding.py: every mode sees the same images, each once an epoch."""

import itertools

import numpy as np
import pytest

from bench.workload import sharding

SIZES = [(100, 12), (97, 8), (1437, 64), (10, 7), (5, 12)]  # (images, global batch): most do not divide


def take(num_images, seed, global_batch, count):
    return list(itertools.islice(sharding.global_batches(num_images, seed, global_batch), count))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
def test_the_ranks_shards_make_up_the_global_batch(world_size):
    """DP cuts its batch with ``chunk``, so chunk d must be what rank d of DDP reads."""
    for batch in take(1437, 0, 6 * world_size, 4):
        shards = [sharding.shard(batch, rank, 1, world_size) for rank in range(world_size)]
        assert {len(part) for part in shards} == {6}
        assert sorted(np.concatenate(shards)) == sorted(batch)
        chunks = np.split(sharding.shard(batch, 0, world_size, world_size), world_size)
        assert [chunk.tolist() for chunk in chunks] == [shard.tolist() for shard in shards]


@pytest.mark.parametrize(("num_images", "global_batch"), SIZES)
def test_an_epoch_loses_no_image_and_repeats_none(num_images, global_batch):
    batches = take(num_images, 0, global_batch, sharding.steps_of_epochs(num_images, 3, global_batch)[-1])
    assert {len(batch) for batch in batches} == {global_batch}
    stream = np.concatenate(batches)
    for epoch in range(3):
        draws = stream[epoch * num_images : (epoch + 1) * num_images]
        assert sorted(draws % num_images) == list(range(num_images))
        assert set(draws // num_images) == {epoch}


@pytest.mark.parametrize(("num_images", "global_batch"), SIZES)
@pytest.mark.parametrize("seen", [0, 1, 7, 250])
def test_a_stream_goes_on_where_it_was_left_whatever_the_batch(num_images, global_batch, seen):
    whole = np.concatenate(take(num_images, 5, 10, 200))
    rest = list(itertools.islice(sharding.global_batches(num_images, 5, global_batch, first=seen), 20))
    assert np.concatenate(rest).tolist() == whole[seen : seen + 20 * global_batch].tolist()


def test_the_order_changes_each_epoch_and_with_the_seed():
    orders = [sharding.epoch_permutation(1437, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))
    assert sharding.epoch_permutation(1437, 1, 1).tolist() == orders[-1]


@pytest.mark.parametrize(("num_images", "global_batch"), SIZES)
@pytest.mark.parametrize("before", [0, 1, 10])
def test_epochs_of_a_resumed_run_end_where_their_last_image_is(num_images, global_batch, before):
    """A run of ``before`` steps of 7 images continues with another batch."""
    assert sharding.steps_of_epochs(num_images, 0, global_batch) == []
    seen = before * 7
    ends = sharding.steps_of_epochs(num_images, 4, global_batch, step=before, images_seen=seen)
    for epoch, end in enumerate(ends, 1):
        images = seen + (end - before) * global_batch
        if num_images * epoch <= seen:
            assert end <= before
        else:
            assert num_images * epoch <= images < num_images * epoch + global_batch
