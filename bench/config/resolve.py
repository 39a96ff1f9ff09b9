"""Defaults by device: every option that was left open gets the value that suits what the run will really use."""

import dataclasses

from bench.config import data_sets
from bench.config.modes import MODES
from bench.config.options import UNSET, RunConfig
from bench.errors import UserError

# A CPU laptop finishes a run in seconds; a GPU gets the workload of the field.
DEFAULTS = {
    "cpu": {"model": "resnet18", "data": "digits", "per_device_batch": 32, "warmup_steps": 3, "timed_steps": 10,
            "baselines": True},
    "cuda": {"model": "resnet50", "data": "synthetic", "per_device_batch": 64, "warmup_steps": 20, "timed_steps": 100,
             "baselines": False},
}  # fmt: skip
PHOTOGRAPH_SIZE = {"cpu": 64, "cuda": 224}  # pixels per side
SYNTHETIC_SIZE = {"cpu": 16, "cuda": 224}

# TUNED=1: a larger batch per device gives each all-reduce more computation to be paid by (its cost does not grow
# with the batch). The engines' own settings are in the table of modes.
TUNED_BATCH = {"cpu": 256, "cuda": 256}


def resolve(config: RunConfig, device: str, usable_cores: int) -> RunConfig:
    """Fill in every option that was left open.

    device: "cpu" or "cuda", what the run will really use. usable_cores: CPU cores this process may run on.
    Raises UserError when a default makes the config impossible (a batch larger than the data).
    """
    if config.cudnn_benchmark and device != "cuda":
        raise UserError("CUDNN_BENCHMARK=1 is of GPUs, and this run uses none: leave it out")
    if config.async_completion and device != "cuda":
        raise UserError("ASYNC_COMPLETION=1 is of reductions by NCCL, and this run uses no GPU: leave it out")
    defaults = dict(DEFAULTS[device])
    info = data_sets.info_of(config.data or defaults["data"])
    if config.tuned:
        most = (info.train_examples or TUNED_BATCH[device] * 10**6) // (config.num_devices * config.accumulate)
        defaults["per_device_batch"] = min(TUNED_BATCH[device], most)
    defaults |= {
        "image_size": info.image_size or (PHOTOGRAPH_SIZE if info.loader else SYNTHETIC_SIZE)[device],
        "workers": (usable_cores if device == "cuda" else config.num_processes) if info.path else 0,
        "augment": info.augment,
        "checkpoint": config.epochs > 0 and not MODES[config.mode].baseline,
        "threads": usable_cores,
    }
    changes = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    changes |= tuned_options(dataclasses.replace(config, device=device), config.mode)
    changes["device"] = device
    if config.launcher == "auto":
        file_url = config.dist_url and config.dist_url.startswith("file:")
        changes["launcher"] = "spawn" if file_url else MODES[config.mode].launchers[0]
    return dataclasses.replace(config, **changes)


def tuned_options(config: RunConfig, mode: str) -> dict:
    """What TUNED=1 sets for a mode on the config's device, less what the user has set otherwise; nothing without it."""
    tuned = MODES[mode].tuned.get(config.device, {}) if config.tuned else {}
    return {name: value for name, value in tuned.items() if getattr(config, name) == UNSET[name]}
