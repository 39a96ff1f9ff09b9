"""What is chosen for a GPU where it was left open: by its generation, its memory and what was given."""

import pytest

from bench.config import gpu_defaults
from bench.config.command_line import make_command
from bench.config.modes import MODES
from bench.config.options import PLAIN, UNSET, RunConfig, from_dict, to_dict
from bench.config.resolve import resolve
from bench.studies.programs import in_mode
from tests.unit.config.test_options import parse

# Compute capability and memory in GiB, as NVML tells them.
GPUS = {
    "GTX 1080": ((6, 1), 8.0), "V100": ((7, 0), 15.8), "T4": ((7, 5), 14.7), "RTX 2080": ((7, 5), 7.8),
    "A100": ((8, 0), 39.5), "L4": ((8, 9), 22.5), "H100": ((9, 0), 79.6), "silent": (None, None),
}  # fmt: skip
OFF = {"channels_last": False, "cudnn_benchmark": False, "fused": False}
SEARCHED = OFF | {"cudnn_benchmark": True, "fused": True}
ON = SEARCHED | {"channels_last": True}


def on(gpu: str, **given) -> RunConfig:
    return resolve(RunConfig(**given), "cuda", 16, *GPUS[gpu])


def chosen(config: RunConfig) -> dict:
    return {name: getattr(config, name) for name in (*PLAIN, "per_device_batch") if name != "memory"}


CHOSEN = {
    "GTX 1080": ("fp32", SEARCHED, 32), "V100": ("fp16", ON, 128), "T4": ("fp16", ON, 128),
    "RTX 2080": ("fp16", ON, 64), "A100": ("bf16", ON, 256), "L4": ("bf16", ON, 256), "H100": ("bf16", ON, 256),
    "silent": ("fp32", SEARCHED, 64),
}  # fmt: skip


@pytest.mark.parametrize("gpu", CHOSEN)
def test_the_defaults_follow_from_the_gpu_and_are_the_same_for_every_mode(gpu):
    """But for fsdp: torch has no fused sgd for what it shards."""
    precision, switches, batch = CHOSEN[gpu]
    for mode in MODES:
        config, fused = on(gpu, mode=mode), {"fused": mode != "fsdp"}
        assert chosen(config) == {"precision": precision, "per_device_batch": batch} | switches | fused
        assert on(gpu, mode=mode, optimizer="adamw").fused
        assert f"precision={precision}" in config.label.gpu_defaults and f"batch={batch}" in config.label.gpu_defaults


def test_plain_is_what_pytorch_does_by_itself_and_on_a_cpu_every_run_is():
    for gpu in GPUS:
        config = on(gpu, plain=True)
        assert chosen(config) == {"precision": "fp32", "per_device_batch": 64} | OFF
        assert config.plain and config.label.gpu_defaults is None and gpu_defaults.sentence(config) == ""
    for plain in (False, True):
        config = resolve(RunConfig(plain=plain), "cpu", 2)
        assert chosen(config) | {"memory": config.memory} == PLAIN | {"per_device_batch": 32}
        named = {word.split("=")[0] for word in make_command(config).split()}
        assert not config.plain and not {"PRECISION", "FUSED", "TORCH_DEFAULTS"} & named
    assert {name: UNSET[name] for name in PLAIN} == {"precision": "fp32", "memory": False} | OFF  # of older records


def test_what_was_given_stays_and_the_other_defaults_suit_it():
    given = {"precision": "tf32", "per_device_batch": 7} | OFF
    for plain in (False, True):
        config = on("H100", plain=plain, **given)
        assert chosen(config) == given and config.label.gpu_defaults is None
    assert on("H100", plain=True, fused=True).fused
    assert not on("H100", precision="fp32").channels_last and on("H100", precision="tf32").channels_last
    assert on("A100", precision="fp32", image_size=448).per_device_batch == 64  # 4 times the pixels, and twice as long
    assert on("H100", model="vgg16").per_device_batch == 64  # not in the table
    assert on("H100", num_devices=4, mode="ddp", share_gpu=True).per_device_batch == 256  # 20 GiB each
    assert on("L4", num_devices=4, mode="ddp", share_gpu=True).per_device_batch == 32
    assert on("H100", num_devices=8, data="digits").per_device_batch == 128  # 8 × 256 are more than the 1437 digits
    for training in ({"epochs": 2}, {"epochs": 2, "mode": "dp"}, {"tuned": True}):  # has its own batch
        config = on("V100", data="digits", **training)
        assert config.per_device_batch == (256 if config.tuned else 64) and "batch" not in config.label.gpu_defaults
    for mode, given in (("ddp", {"compression": "powersgd"}), ("horovod", {"adasum": True})):  # no scaled loss
        config = on("T4", mode=mode, **given)
        assert config.precision == "fp32" and config.fused is (mode == "ddp")


@pytest.mark.parametrize("given", [{}, {"precision": "fp32"}, {"fused": False, "plain": True}])
def test_the_command_of_a_record_repeats_it_on_any_gpu(given):
    """What the GPU has chosen is named: the command means the same on another one."""
    config = on("A100", mode="single", **given)
    words = dict(word.split("=", 1) for word in make_command(config).split()[2:])
    again = resolve(parse(**{name.lower(): value for name, value in words.items()}), "cuda", 16, *GPUS["T4"])
    assert to_dict(again) | {"gpu_defaults": None} == to_dict(config) | {"gpu_defaults": None}
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("given", "modes", "fused"),
    [
        ({}, ["single", "ddp"], True),
        ({}, ["single", "ddp", "fsdp"], False),
        ({"optimizer": "adamw"}, ["ddp", "fsdp"], True),
        ({"fused": True}, ["ddp", "fsdp"], True),  # it was asked for: the run says that it cannot be
    ],
)
def test_modes_that_are_compared_have_the_same_optimizer(given, modes, fused):
    """One that cannot have the default takes it from all, and the label says so."""
    config = gpu_defaults.without_fused(on("H100", num_devices=2, mode="ddp", **given), modes)
    found = [in_mode(config, mode) for mode in modes]
    assert {each.fused for each in found} == {fused}
    assert ("fused=0" in config.label.gpu_defaults) == (not fused)
