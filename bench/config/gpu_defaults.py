"""Defaults on a GPU, for a convolutional network: the same for every mode, by the GPU's generation, its memory and the
given options. TORCH_DEFAULTS=1 turns them off. It uses neither torch nor the driver.

- precision: bf16 from Ampere on: tensor cores are twice as fast in it as in TF32, and half the memory is moved. On
  Volta and Turing fp16 with a scaled loss, as their tensor cores have no bf16; fp32 on older ones. See also
  tutorials/manual/options.md ("On a GPU").
- channels_last wherever tensor cores compute: N H W C is their order. In fp32 it gains nothing.
- cudnn_benchmark: every step has the same shapes, so the search is paid once, in the untimed steps.
- fused: one kernel for many parameters. Adasum steps parameter by parameter, and torch has no fused sgd for sharded
  tensors (fsdp): a study with such a mode uses no fused optimizer (`without_fused`), so that modes stay comparable.
- the batch: the largest power of two that fits into the memory, at most 256. A training by epochs keeps 64: its
  learning rate is meant for a batch, and a default must not change it from one GPU to the next.
"""

import dataclasses
from collections.abc import Iterable

from bench.config.modes import MODES
from bench.config.options import FIELDS, RunConfig

BF16, TENSOR_CORES = (8, 0), (7, 0)  # compute capability: Ampere, Volta
PLAIN_BATCH, LARGEST_BATCH = 64, 256
# MiB per image of 224 x 224 that the forward pass saves for the backward pass, in fp32: the storage of the tensors that
# autograd saves (torch.autograd.graph.saved_tensors_hooks, torchvision 0.29), each counted once, without the weights.
KEPT_MIB = {"resnet18": 22, "resnet34": 31, "resnet50": 83, "resnet101": 122, "resnet152": 170}
SHORT = 0.6  # share of that in bf16 and fp16: half, plus tensors that stay in fp32
OTHERS_GIB = 2.0  # CUDA, its libraries, weights, gradients, momentum
SHARE = 0.75  # share of the rest, for fragmentation, cuDNN's workspace, gradients of activations


def chosen(
    config: RunConfig, model: str, image_size: int, most: int, capability: tuple[int, int] | None,
    memory_gib: float | None,
) -> dict:  # fmt: skip
    """Option -> value, for the options of ``PLAIN`` and the batch that were not given. most: images per device in the
    data. capability, memory_gib: the lowest of the GPUs; None (unknown) counts as old and small."""
    precision = config.precision or precision_of(config, capability)
    values = {"precision": precision, "channels_last": precision != "fp32", "cudnn_benchmark": True}
    values["fused"] = can_fuse(config, config.mode)
    if not (config.epochs or config.evaluate or config.tuned):
        shared = config.num_devices if config.share_gpu else 1
        fits = batch_of(model, image_size, precision, memory_gib and memory_gib / shared)
        values["per_device_batch"] = min(fits, power_of_two(most))
    return {name: value for name, value in values.items() if getattr(config, name) is None}


def can_fuse(config: RunConfig, mode: str) -> bool:
    return not (config.adasum or ("weights" in MODES[mode].shards and config.optimizer == "sgd"))


def chose_fused(config: RunConfig) -> bool:
    return bool(config.fused) and "fused=1" in (config.label.gpu_defaults or "").split()


def without_fused(config: RunConfig, modes: Iterable[str]) -> RunConfig:
    """The config of a study of these modes: if one of them has no fused optimizer, none gets it by default."""
    if not chose_fused(config) or all(can_fuse(config, mode) for mode in modes):
        return config
    said = config.label.gpu_defaults.replace("fused=1", "fused=0")
    return dataclasses.replace(config, fused=False).labelled(gpu_defaults=said)


def precision_of(config: RunConfig, capability: tuple[int, int] | None) -> str:
    """By the GPU's generation, unless PARAM_DTYPE names it. PowerSGD and Adasum exclude fp16's scaled loss."""
    if config.param_dtype:
        return config.param_dtype
    if capability and capability >= BF16:
        return "bf16"
    scaled = config.compression != "powersgd" and not config.adasum
    return "fp16" if capability and capability >= TENSOR_CORES and scaled else "fp32"


def batch_of(model: str, image_size: int, precision: str, memory_gib: float | None) -> int:
    """The largest power of two that fits by the table; 64 for an unknown model or memory.

    >>> [batch_of("resnet50", 224, "bf16", gib) for gib in (79.6, 14.7)], batch_of("vgg16", 224, "bf16", 79.6)
    ([256, 128], 64)
    """
    if model not in KEPT_MIB or memory_gib is None:
        return PLAIN_BATCH
    each = KEPT_MIB[model] * (image_size / 224) ** 2 * (SHORT if precision in ("bf16", "fp16") else 1)
    fits = SHARE * max(0.0, memory_gib - OTHERS_GIB) * 1024 / each
    return min(LARGEST_BATCH, power_of_two(int(fits)))


def power_of_two(number: int) -> int:
    return 2 ** max(0, number.bit_length() - 1)


def in_words(values: dict) -> str:
    words = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return " ".join(f"{FIELDS[name].metadata['flag'] or name}={value}" for name, value in words.items())


def sentence(config: RunConfig) -> str:
    if not config.label.gpu_defaults:
        return ""
    found = dict(word.split("=") for word in config.label.gpu_defaults.split())
    said = [found.pop("precision")] if "precision" in found else []
    batch = [f"batch {found.pop('batch')}"] if "batch" in found else []
    said += [name for name, value in found.items() if value == "1"] + batch
    return f"defaults for this GPU: {', '.join(said)}; TORCH_DEFAULTS=1 turns them off" if said else ""
