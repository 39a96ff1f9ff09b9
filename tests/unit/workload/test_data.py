"""What digits and synthetic data hold, and the batches a process is given (bench/workload/loader.py)."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.config.data_sets import DATA_SETS
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes.base import Topology
from bench.workload import loader
from bench.workload.images import ToFloat, digits, load_data
from bench.workload.images.digits import Digits
from bench.workload.images.synthetic import LENGTH, Synthetic

CPU = torch.device("cpu")


def config_of(**options) -> RunConfig:
    return resolve(RunConfig(**{"mode": "ddp", "per_device_batch": 6} | options), "cpu", 2)


def place(rank=0, world_size=1, devices=1) -> Topology:
    return Topology(rank, rank, world_size, devices, CPU)


def all_batches(config, topology, dataset, steps):
    """The batches of a process as one pair of tensors: images [steps, b, 3, H, W], labels [steps, b]."""
    pairs = list(loader.training_batches(config, topology, dataset, steps))
    return torch.stack([images for images, _, _ in pairs]), torch.stack([labels for _, labels, _ in pairs])


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


@pytest.mark.parametrize(("workers", "shares"), [(0, [0, 0, 0]), (3, [1, 1, 1]), (4, [2, 1, 1]), (2, [1, 1, 0])])
def test_workers_are_shared_out_in_total_and_change_nothing(workers, shares):
    dataset, config = Digits(8, train=True), config_of(num_devices=3, workers=workers)
    assert [loader.training_batches(config, place(r, 3), dataset, 1).num_workers for r in range(3)] == shares
    plain, loaded = (all_batches(c, place(0, 3), dataset, 5) for c in (config_of(num_devices=3), config))
    assert all(torch.equal(a, b) for a, b in zip(plain, loaded, strict=True))


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


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("images", [1, 5, 360])
def test_validation_shares_hold_every_image_once(world_size, images):
    """In separate batches for each device."""
    config = config_of(num_devices=world_size)
    loaders = [loader.validation_batches(config, place(r, world_size), range(images)) for r in range(world_size)]
    shares = [[int(i) for draws in each.sampler for i in draws] for each in loaders]
    assert sorted(i for share in shares for i in share) == list(range(images))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for mode, devices in (("ddp", 1), ("dp", 3)):
        for given, each in ((None, 6), (10, 10)):
            config = config_of(mode=mode, num_devices=3, val_batch=given, epochs=1)
            batches = loader.validation_batches(config, place(devices=devices), range(100)).sampler
            sizes = [len(draws) for draws in batches]
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
