"""What digits and synthetic data hold, and the batches a process is given (bench/workload/loader.py)."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.config.data_sets import DATA_SETS
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.modes.base import Topology
from bench.workload import loader
from bench.workload.images import ToFloat, digits, load_data
from bench.workload.images.digits import Digits
from bench.workload.images.synthetic import LENGTH, Synthetic

CPU = torch.device("cpu")


def config_of(**options) -> RunConfig:
    """A resolved config for the CPU."""
    return resolve(RunConfig(**{"mode": "ddp", "per_device_batch": 6} | options), "cpu", 2)


def place(rank=0, world_size=1, devices=1) -> Topology:
    """Where a process sits."""
    return Topology(rank, rank, world_size, devices, CPU)


def all_batches(config, topology, dataset, steps):
    """The batches of a process as one pair of tensors: images [steps, b, 3, H, W], labels [steps, b]."""
    pairs = list(loader.training_batches(config, topology, dataset, steps))
    return torch.stack([images for images, _, _ in pairs]), torch.stack([labels for _, labels, _ in pairs])


def test_digits_have_the_sizes_they_say():
    train, held_out = Digits(16, train=True), Digits(16, train=False)
    assert (len(train), len(held_out)) == (1437, 360) and DATA_SETS["digits"].train_examples == 1437
    for dataset in (train, held_out):
        assert set(dataset.labels.tolist()) == set(range(dataset.num_classes))


@pytest.mark.parametrize("size", [8, 16, 33])
def test_digits_are_enlarged_and_have_three_equal_channels(size):
    images, labels, _ = Digits(size, train=True)[np.arange(5)]
    assert images.shape == (5, 3, size, size) and images.dtype == torch.float32
    assert labels.shape == (5,) and labels.dtype == torch.int64
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])


def test_digits_are_normalised():
    pixels = torch.cat([Digits(8, train).images for train in (True, False)])
    assert abs(float(pixels.mean())) < 0.01 and abs(float(pixels.std()) - 1) < 0.01


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    table, theirs = digits.read_digits(), load_digits()
    assert np.array_equal(table[:, :64], theirs.data) and np.array_equal(table[:, 64], theirs.target)


def test_held_out_digits_are_not_trained_on():
    order = np.random.default_rng(1797).permutation(1797)  # no image of the table occurs twice: they can be told apart
    train, held_out = ({row.numpy().tobytes() for row in Digits(8, t).images} for t in (True, False))
    assert len(train | held_out) == len(order) and not train & held_out


def test_held_out_digits_do_not_depend_on_the_seed():
    sets = [load_data(config_of(seed=seed), CPU)[1].images for seed in (0, 1)]
    assert torch.equal(*sets)


def test_digits_without_scikit_learn_are_a_users_error(monkeypatch):
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"DATA=digits.*scikit-learn"):
        Digits(8, train=True)


def test_synthetic_data_are_the_same_in_every_process():
    a, b = Synthetic(16, CPU), Synthetic(16, CPU)
    indices = np.array([0, 5, 511, 512, 65_535])
    (images, labels, _), (again, labels_again, _) = a[indices], b[indices]
    assert torch.equal(images, again) and torch.equal(labels, labels_again)
    assert images.shape == (5, 3, 16, 16) and torch.equal(images[0], images[3])  # 512 comes round to 0


def test_synthetic_data_leave_the_random_numbers_of_the_model_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Synthetic(8, CPU)
    assert torch.equal(torch.rand(3), expected)


def test_synthetic_data_have_no_held_out_set():
    train, held_out = load_data(config_of(data="synthetic"), CPU)
    assert len(train) == LENGTH and held_out is None


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_read_what_one_process_reads(world_size):
    dataset = Digits(8, train=True)
    many = config_of(num_devices=world_size)
    one = config_of(mode="single", per_device_batch=many.global_batch)
    whole, _ = all_batches(one, place(), dataset, 3)
    shares = [all_batches(many, place(r, world_size), dataset, 3)[0] for r in range(world_size)]
    for step in range(3):
        parts = {image.numpy().tobytes() for share in shares for image in share[step]}
        assert parts == {image.numpy().tobytes() for image in whole[step]}


def test_dps_chunks_are_ddps_shares():
    dataset = Digits(8, train=True)
    dp, _ = all_batches(config_of(mode="dp", num_devices=3), place(devices=3), dataset, 2)
    for rank in range(3):
        ddp, _ = all_batches(config_of(num_devices=3), place(rank, 3), dataset, 2)
        assert torch.equal(dp.chunk(3, dim=1)[rank], ddp)


def test_loader_workers_change_nothing():
    dataset = Digits(8, train=True)
    plain = all_batches(config_of(), place(), dataset, 5)
    loaded = all_batches(config_of(workers=2), place(), dataset, 5)
    assert all(torch.equal(a, b) for a, b in zip(plain, loaded, strict=True))


@pytest.mark.parametrize(("workers", "shares"), [(0, [0, 0, 0]), (3, [1, 1, 1]), (4, [2, 1, 1]), (2, [1, 1, 0])])
def test_workers_are_shared_out_in_total(workers, shares):
    dataset = Digits(8, train=True)
    config = config_of(num_devices=3, workers=workers)
    assert [loader.training_batches(config, place(r, 3), dataset, 1).num_workers for r in range(3)] == shares


@pytest.mark.parametrize("world_size", [1, 2])
def test_each_pass_of_an_accumulated_step_is_a_part_of_the_global_batch(world_size):
    """Pass j of the processes together is the j-th part: as if it were a step of its own with a third of the batch."""
    many = config_of(num_devices=world_size, accumulate=3)
    small = config_of(mode="single", per_device_batch=6 * world_size)
    assert many.global_batch == 18 * world_size
    shares = [list(loader.Draws(many, place(r, world_size), 100, 4)) for r in range(world_size)]
    parts = list(loader.Draws(small, place(), 100, 12))
    for step in range(4):
        for j in range(3):
            seen = np.concatenate([share[step][6 * j : 6 * j + 6] for share in shares])
            assert sorted(seen) == sorted(parts[3 * step + j])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("images", [1, 5, 12, 360])
def test_validation_shares_hold_every_image_once(world_size, images):
    config = config_of(num_devices=world_size)
    loaders = [loader.validation_batches(config, place(r, world_size), range(images)) for r in range(world_size)]
    shares = [[int(i) for draws in each.sampler for i in draws] for each in loaders]
    assert sorted(i for share in shares for i in share) == list(range(images))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("mode", "devices_per_process"), [("ddp", 1), ("dp", 3)])
def test_a_validations_batch_is_its_own_for_each_device(mode, devices_per_process):
    at = place(devices=devices_per_process)
    for given, each in ((None, 6), (10, 10)):
        config = config_of(mode=mode, num_devices=3, val_batch=given, epochs=1)
        sizes = [len(draws) for draws in loader.validation_batches(config, at, range(100)).sampler]
        assert set(sizes[:-1]) == {each * devices_per_process} and sum(sizes) == 100


def test_bytes_become_numbers_of_the_data_sets_mean_and_deviation():
    photographs = SimpleNamespace(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    images = torch.tensor([0, 127, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    numbers = ToFloat(photographs, CPU)(images)
    expected = (images / 255 - torch.tensor(photographs.mean)[:, None, None]) / torch.tensor(photographs.std)[
        :, None, None
    ]
    assert numbers.dtype == torch.float32 and torch.allclose(numbers, expected, atol=1e-6)


def test_numbers_stay_what_they_are():
    images = torch.randn(2, 3, 8, 8)
    assert ToFloat(Digits(8, train=True), CPU)(images) is images


def test_a_step_larger_than_the_data_is_refused():
    config = config_of(per_device_batch=500, num_devices=2, accumulate=1)
    with pytest.raises(UserError, match=r"BATCH=700 .* DATA=digits has 1437"):
        config_of(per_device_batch=700, num_devices=3)
    assert len(load_data(config, CPU)[0]) == 1437


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
