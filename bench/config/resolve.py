"""Defaults by device: every option that was not given gets a value for the device that the run will use."""

import dataclasses

from bench.config import data_sets, gpu_defaults
from bench.config.modes import MODES
from bench.config.options import PLAIN, UNSET, RunConfig
from bench.config.rules import GPT
from bench.errors import UserError

# A laptop's CPU finishes a run in seconds; a GPU gets a standard workload.
DEFAULTS = {
    "cpu": {"model": "resnet18", "data": "digits", "per_device_batch": 32, "warmup_steps": 3, "timed_steps": 10,
            "baselines": True},
    "cuda": {"model": "resnet50", "data": "synthetic", "per_device_batch": gpu_defaults.PLAIN_BATCH,
             "warmup_steps": 20, "timed_steps": 100, "baselines": False},
}  # fmt: skip
PHOTOGRAPH_SIZE = {"cpu": 64, "cuda": 224}  # pixels per side
SYNTHETIC_SIZE = {"cpu": 16, "cuda": 224}
# MODEL=gpt: on a GPU the sizes of GPT-2 small (Radford et al. 2019).
GPT_SIZES = {"cpu": {"layers": 2, "width": 64, "heads": 2}, "cuda": {"layers": 12, "width": 768, "heads": 12}}
CONTEXT = {"cpu": 64, "cuda": 1024}
GPT_BATCH = 16  # on a GPU

# TUNED=1: more computation for each all-reduce, whose cost does not grow with the batch.
TUNED_BATCH = {"cpu": 256, "cuda": 256}


def resolve(
    config: RunConfig, device: str, usable_cores: int, capability: tuple[int, int] | None = None,
    memory_gib: float | None = None,
) -> RunConfig:  # fmt: skip
    """Fill in every option that was not given.

    device: "cpu" or "cuda", which the run will use. usable_cores: CPU cores this process may run on. capability,
    memory_gib: the lowest of the GPUs. Raises UserError if a default makes the config invalid.
    """
    on_gpus = {"CUDNN_BENCHMARK=1": config.cudnn_benchmark, "DECODE=cuda": config.decode == "cuda",
               "NUMA_BINDING=1": config.numa_binding, "ASYNC_COMPLETION=1": config.async_completion}  # fmt: skip
    for words, given in on_gpus.items():
        if given and device != "cuda":
            raise UserError(f"{words} needs GPUs, but this run uses none: leave it out")
    if config.adasum and device == "cpu" and config.num_processes & (config.num_processes - 1):
        n = config.num_devices
        raise UserError(f"ADASUM=1 needs a power of 2, but GPUS={n}: use GPUS=2 or 4")
    defaults = dict(DEFAULTS[device])
    if config.model == GPT and config.data is None:
        defaults["data"] = "stdlib"
    info = data_sets.info_of(config.data or defaults["data"])
    text, images = info.workload == "text", info.workload == "images"
    if images:
        sizes = PHOTOGRAPH_SIZE if info.loader else SYNTHETIC_SIZE
        defaults["image_size"] = info.image_size or sizes[device]
    if text:
        defaults |= {"model": GPT, "context": CONTEXT[device]}
        defaults |= {"per_device_batch": GPT_BATCH} if device == "cuda" else {}
    if (config.model or defaults["model"]) == GPT:
        defaults |= GPT_SIZES[device]
    most = (info.train_examples or TUNED_BATCH[device] * 10**6) // (config.num_devices * config.accumulate)
    if config.tuned:
        defaults["per_device_batch"] = min(TUNED_BATCH[device], most)
    defaults |= PLAIN | {
        "workers": (usable_cores if device == "cuda" else config.num_processes) if info.path else 0,
        "augment": info.augment,
        "checkpoint": config.epochs > 0 and not MODES[config.mode].baseline,
        "memory": device == "cuda" and not config.epochs and not config.evaluate,
        "threads": usable_cores,
    }
    chosen = {}
    if device == "cuda" and not config.plain:
        model, size = (getattr(config, name) or defaults.get(name) for name in ("model", "image_size"))
        memory_gib = min(filter(None, (memory_gib, config.memory_gib)), default=None)
        chosen = gpu_defaults.chosen(config, model, size, most, capability, memory_gib)
        if not images:  # no image layout, and no known batch that fits
            for name in {"channels_last", "per_device_batch"} & chosen.keys():
                del chosen[name]
    defaults |= chosen
    changes = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    changes |= tuned_options(dataclasses.replace(config, device=device), config.mode)
    changes |= {"device": device, "plain": config.plain and device == "cuda"}  # on a CPU every run has torch's defaults
    if chosen:
        config = config.labelled(gpu_defaults=gpu_defaults.in_words(chosen))
    if config.elastic and config.lr_batch is None:  # LR is chosen for the initial number of devices
        changes["lr_batch"] = dataclasses.replace(config, **changes).global_batch
    if config.launcher == "auto":
        changes["launcher"] = launcher_of(config)
    return dataclasses.replace(config, **changes)


def launcher_of(config: RunConfig) -> str:
    launchers, url = MODES[config.mode].launchers, config.dist_url or ""
    needed = {"spawn": url.startswith("file:"), "mpirun": config.adasum}
    return next((name for name in launchers if needed.get(name)), launchers[0])


def tuned_options(config: RunConfig, mode: str) -> dict:
    """Options that TUNED=1 sets for a mode on the config's device, except given ones."""
    tuned = MODES[mode].tuned.get(config.device, {}) if config.tuned else {}
    return {name: value for name, value in tuned.items() if getattr(config, name) == UNSET[name]}
