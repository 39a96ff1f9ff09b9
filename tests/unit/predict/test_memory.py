"""What a step will need, predicted: the arithmetic of modes, and what changes it and what does not."""

import dataclasses

import pytest

from bench import formulas
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.predict.memory.plan import of_devices
from bench.predict.memory.step import simulate

MIB = 2**20
pytestmark = pytest.mark.slow


def config_of(device: str = "cuda", **options) -> RunConfig:
    small = {"model": "resnet18", "data": "digits", "image_size": 64, "per_device_batch": 16, "plain": True}
    return resolve(RunConfig(**small | options), device, usable_cores=2)


def parts_of(device: str = "cuda", **options) -> list[dict]:
    return [found.parts for found in of_devices(config_of(device, **options), num_outputs=10)]


def test_what_each_engine_adds_is_a_second_copy_of_the_gradients_or_none():
    (single,) = parts_of(mode="single")
    weights = single["weights"]
    assert weights == 4 * 11_181_642 and single["optimizer state"] == weights
    ddp, views = parts_of(mode="ddp", num_devices=2)[0], parts_of(mode="ddp", gradient_as_bucket_view=True)[0]
    assert ddp == single | {"buckets": weights}
    assert views["gradients"] == weights and "buckets" not in views
    horovod = parts_of(mode="horovod", num_devices=2, fusion_mb=16.0)[0]
    assert horovod["buckets"] == 16 * MIB and "buckets" not in parts_of(mode="horovod")[0]
    halves = parts_of(mode="ddp", num_devices=2, compression="fp16")[0]
    assert halves["buckets"] == weights + weights // 2
    config = config_of(mode="ddp", num_devices=2)
    assert simulate(config, 10) is simulate(dataclasses.replace(config, mode="independent"), 10)  # of both modes


@pytest.mark.parametrize("mode", ["ddp", "zero1", "fsdp"])
def test_what_is_sharded_is_divided_as_promised(mode):
    """Between two steps, by the formula: 16 bytes a parameter under Adam, less what is sharded over four ranks."""
    said = formulas.sharded_bytes(11_181_642, 4, MODES[mode].shards)
    for parts in parts_of(mode=mode, num_devices=4, optimizer="adam"):
        for kind in ("weights", "optimizer state"):
            assert parts[kind] == pytest.approx(said[kind], rel=0.10), kind
        assert ("gathered" in parts) == ("weights" in MODES[mode].shards)


def test_a_blocks_weights_are_gathered_while_it_computes_and_not_those_of_all():
    """With RESHARD_AFTER_FORWARD=0 all are at the end of the forward pass; one device has nothing to gather."""
    freed, kept = (parts_of(mode="fsdp", num_devices=2, reshard=reshard)[0] for reshard in (True, False))
    assert freed["weights"] == kept["weights"] and freed["gathered"] < 0.9 * kept["gathered"]
    assert parts_of(mode="fsdp")[0] == parts_of(mode="single")[0]


def test_dataparallels_first_device_has_what_exists_once():
    first, *others = parts_of(mode="dp", num_devices=3, data="synthetic")
    assert others == 2 * [others[0]] and not {"weights", "optimizer state", "data"} & set(others[0])
    assert others[0]["replicas"] == first["weights"] + first["buffers"] and "optimizer state" in first
    assert first["images"] == pytest.approx(3 * others[0]["images"], rel=1e-3)
    assert first["outputs"] == 2 * 3 * 16 * 10 * 4
    assert first["data"] == 512 * (4 * 3 * 64**2 + 8)  # the pool of synthetic images
    (few, _) = of_devices(config_of(mode="dp", num_devices=2, image_size=16, per_device_batch=2), 10)
    assert few.moment == "end of backward" and few.parts["gradients"] == 2 * few.parts["weights"]


def test_what_options_change_and_what_they_leave():
    full, adam, half = parts_of()[0], parts_of(optimizer="adam")[0], parts_of(precision="bf16")[0]
    assert adam["optimizer state"] == pytest.approx(2 * full["optimizer state"], rel=1e-4)  # and its step counters
    assert "optimizer state" not in parts_of(momentum=0.0)[0]
    head = parts_of(train_only="fc*")[0]
    assert head["optimizer state"] == 4 * (512 * 10 + 10) and head["weights"] == full["weights"]
    assert head["activations"] < full["activations"] / 2
    assert 0.5 < half["activations"] / full["activations"] < 0.75  # the autocast's copies of the weights are in it
    again = parts_of(activation_checkpointing=True)[0]
    assert sum(again.values()) < sum(full.values()) and again["weights"] == full["weights"]
    twice = parts_of(accumulate=2, per_device_batch=16)[0]
    assert twice["images"] == pytest.approx(2 * full["images"], rel=1e-3)
    assert twice["gradients"] == full["weights"]  # the first pass's are there already
    assert twice["activations"] < 1.2 * (full["activations"] + max(full["gradients"], 9 * MIB))
    large = parts_of(per_device_batch=32)[0]
    assert large["activations"] == pytest.approx(2 * full["activations"], rel=0.1)
    assert {k: v for k, v in full.items() if k in ("weights", "buffers", "optimizer state")}.items() <= large.items()


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(UserError, match=r"MODEL=resnet19.*resnet18"):
        parts_of(model="resnet19")
