"""What digits and synthetic data hold, and the batches a process is given (bench/workload/sharding.py, loader.py)."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.config.data_sets import DATA_SETS
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes.base import Topology
from bench.workload import loader, sharding
from bench.workload.images import ToFloat, digits, load_data
from bench.workload.images.digits import Digits
from bench.workload.images.synthetic import LENGTH, Synthetic

CPU = torch.device("cpu")


def config_of(**options) -> RunConfig:
    return resolve(RunConfig(**{"mode": "ddp", "per_device_batch": 6} | options), "cpu", 2)


def place(rank=0, world_size=1, devices=1) -> Topology:
    return Topology(rank, rank, world_size, devices, CPU)


@pytest.mark.parametrize("size", [8, 33])
def test_digits_are_enlarged_and_normalised_with_three_equal_channels(size):
    dataset = Digits(size, train=True)
    images, labels, _ = dataset[np.arange(5)]
    assert images.shape == (5, 3, size, size) and images.dtype == torch.float32
    assert labels.shape == (5,) and labels.dtype == torch.int64
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    assert ToFloat(dataset, CPU)(images) is images  # they are numbers already


def test_held_out_digits_are_not_trained_on_whatever_the_seed():
    """No image occurs twice: they can be told apart."""
    train, held_out = ({row.numpy().tobytes() for row in Digits(8, train).images} for train in (True, False))
    assert (len(train), len(held_out)) == (1437, 360) and not train & held_out
    assert DATA_SETS["digits"].train_examples == 1437
    assert torch.equal(*(load_data(config_of(seed=seed), CPU)[1].images for seed in (0, 1)))
    pixels = torch.cat([Digits(8, train).images for train in (True, False)])
    assert abs(float(pixels.mean())) < 0.01 and abs(float(pixels.std()) - 1) < 0.01


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    table, theirs = digits.read_digits(), load_digits()
    assert np.array_equal(table[:, :64], theirs.data) and np.array_equal(table[:, 64], theirs.target)


def test_synthetic_data_are_the_same_in_every_process():
    """And draw none of the model's random numbers; there is no held-out set."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    a, b = Synthetic(16, CPU), Synthetic(16, CPU)
    assert torch.equal(torch.rand(3), expected)
    indices = np.array([0, 5, 511, 512, 65_535])
    (images, labels, _), (again, labels_again, _) = a[indices], b[indices]
    assert torch.equal(images, again) and torch.equal(labels, labels_again)
    assert images.shape == (5, 3, 16, 16) and torch.equal(images[0], images[3])  # 512 comes round to 0
    train, held_out = load_data(config_of(data="synthetic"), CPU)
    assert len(train) == LENGTH and held_out is None
    assert len(load_data(config_of(data="synthetic", per_device_batch=77_473), CPU)[0]) == 77_473  # enough for a step


@pytest.mark.parametrize(("workers", "shares"), [(0, [0, 0, 0]), (3, [1, 1, 1]), (4, [2, 1, 1]), (2, [1, 1, 0])])
def test_workers_are_shared_out_in_total_and_change_nothing(workers, shares):
    dataset, configs = Digits(8, train=True), [config_of(num_devices=3, workers=number) for number in (0, workers)]
    assert [loader.training_batches(configs[1], place(r, 3), dataset, 1).num_workers for r in range(3)] == shares
    plain, loaded = (list(loader.training_batches(config, place(0, 3), dataset, 5)) for config in configs)
    for (images, labels, _), (images_too, labels_too, _) in zip(plain, loaded, strict=True):
        assert torch.equal(images, images_too) and torch.equal(labels, labels_too)


@pytest.mark.parametrize("world_size", [1, 2])
def test_each_pass_of_an_accumulated_step_is_a_part_of_the_global_batch(world_size):
    """Pass j of the processes together is the j-th part: as if it were a separate step with a third of the batch."""
    many = config_of(num_devices=world_size, accumulate=3)
    small = config_of(mode="single", per_device_batch=6 * world_size)
    assert many.global_batch == 18 * world_size
    shares = [list(loader.Draws(many, place(r, world_size), 100, 4)) for r in range(world_size)]
    parts = list(loader.Draws(small, place(), 100, 12))
    for step in range(4):
        for j in range(3):
            seen = np.concatenate([share[step][6 * j : 6 * j + 6] for share in shares])
            assert sorted(seen) == sorted(parts[3 * step + j])


@pytest.mark.parametrize(("world_size", "images"), [(1, 5), (2, 360), (3, 5), (7, 1), (7, 360)])
def test_validation_shares_hold_every_image_once(world_size, images):
    config = config_of(num_devices=world_size)
    loaders = [loader.validation_batches(config, place(r, world_size), range(images)) for r in range(world_size)]
    shares = [[int(i) for draws in each.sampler for i in draws] for each in loaders]
    assert sorted(i for share in shares for i in share) == list(range(images))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("mode", "devices"), [("ddp", 1), ("dp", 3)])
@pytest.mark.parametrize(("given", "each"), [(None, 6), (10, 10)])
def test_validation_is_in_separate_batches_for_each_device(mode, devices, given, each):
    config = config_of(mode=mode, num_devices=3, val_batch=given, epochs=1)
    sizes = [len(draws) for draws in loader.validation_batches(config, place(devices=devices), range(100)).sampler]
    assert set(sizes[:-1]) == {each * devices} and sum(sizes) == 100


def test_bytes_become_numbers_of_the_data_sets_mean_and_deviation():
    photographs = SimpleNamespace(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    images = torch.tensor([0, 127, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    numbers = ToFloat(photographs, CPU)(images)
    expected = (images / 255 - torch.tensor(photographs.mean)[:, None, None]) / torch.tensor(photographs.std)[
        :, None, None
    ]
    assert numbers.dtype == torch.float32 and torch.allclose(numbers, expected, atol=1e-6)


def test_augmented_digits_move_and_are_the_same_for_everybody():
    plain, moved = Digits(8, train=True), Digits(8, train=True, augment=True, seed=5)
    first, second = np.arange(50), np.arange(50) + len(plain)  # the same images an epoch later
    still, _, _ = plain[first]
    (a, labels, _), (b, _, _) = moved[first], moved[second]
    assert torch.equal(labels, plain[first][1])
    changed = sum(not torch.equal(x, y) for x, y in zip(still, a, strict=True))
    assert 30 < changed < 50 and not torch.equal(a, b)  # one in nine stays where it was
    assert torch.equal(torch.cat([moved[first[i::2]][0] for i in (0, 1)]), torch.cat([a[0::2], a[1::2]]))  # two ranks
    assert float(a.min()) == float(plain.images.min())  # what comes in at the border is background


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
