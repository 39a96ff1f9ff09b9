"""Suites: functions that return lists of configs. What belongs together is decided here and nowhere else."""

import dataclasses
from pathlib import Path

from bench.config import RunConfig
from bench.modes import MODES


def in_mode(config: RunConfig, mode: str) -> RunConfig:
    """The same global batches under another mode, by that mode's own launcher.

    single has one device, which takes the whole global batch; only modes of several processes can share a GPU.
    """
    info = MODES[mode]
    changes = {"mode": mode, "launcher": info.launchers[0], "dist_url": None}
    if info.one_process:
        changes["share_gpu"] = False
    if info.max_devices == 1:
        changes |= {"num_devices": 1, "per_device_batch": config.global_batch}
    return dataclasses.replace(config, **changes)


def baselines(config: RunConfig, run_dir: Path) -> list[RunConfig]:
    """What decides whether distribution paid at all: one process with all the threads on the same global batch, and N
    processes without communication (the bound). Their records go below the run's own folder."""
    plain = {
        "out": str(run_dir / "baselines"),
        "baselines": False,
        "epochs": 0,
        "fault": None,
        "snapshots": None,
    }
    config = dataclasses.replace(config, **plain)
    return [in_mode(config, mode) for mode in ("single", "independent") if mode != config.mode]


def verification(config: RunConfig, norm: str) -> dict[str, RunConfig]:
    """Every way to train, on the same batches with the same kind of norm, by name.

    With batch norm a control joins: single again with one thread, which changes nothing but the order of its sums.
    """
    config = dataclasses.replace(config, norm=norm)
    runs = {mode: in_mode(config, mode) for mode, info in MODES.items() if not info.baseline}
    if norm == "batch":
        runs["single, 1 thread"] = dataclasses.replace(runs["single"], threads=1)
    return runs


def gpu_check(config: RunConfig, num_gpus: int) -> list[RunConfig]:
    """Every mode on every GPU, in float32, TF32 and bf16; with one GPU, ddp's ranks sharing it as well."""
    config = dataclasses.replace(config, num_devices=num_gpus, baselines=False)
    runs = [in_mode(dataclasses.replace(config, precision=p), m) for p in ("fp32", "tf32", "bf16") for m in MODES]
    if num_gpus == 1:
        shared = dataclasses.replace(config, num_devices=2, share_gpu=True, mode="ddp", launcher="torchrun")
        runs.append(shared)
    return runs
