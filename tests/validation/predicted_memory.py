"""Memory predicted against memory measured, in real runs.

    python -m tests.validation.predicted_memory [--json FILE]

Each row is a run with MEMORY=1, whose ranks record every allocation of one more step; beside it what
`bench predict memory` says of the same options. What the profiler of a CPU cannot see is left out on both sides:
Horovod's fusion buffer.
"""

import argparse
import json
import tempfile
from pathlib import Path

from bench.config.data_sets import info_of
from bench.measure.environment import collect_machine
from bench.predict.memory.plan import of_devices
from bench.profile.memory_parts import WORKSPACE
from bench.record.view import Record
from tests.multiprocess import ranks
from tests.runs import NARROW

MIB = 2**20
ALIKE = {"image_size": 16, "batch": 16, "memory": 1}
# The first eight are tests as well (tests/multiprocess/test_memory.py).
ROWS = (
    {"mode": "single", "gpus": 1, "model": "resnet50", "image_size": 32, "batch": 4},
    {"mode": "ddp", "gpus": 2, "model": "resnet18", "optimizer": "adam"},
    {"mode": "dp", "gpus": 2, "model": "resnet18"},
    {"mode": "horovod", "gpus": 2, "model": "resnet18"},
    {"mode": "zero1", "gpus": 2, "model": "resnet18", "optimizer": "adam"},
    {"mode": "fsdp", "gpus": 2, "model": "resnet18", "optimizer": "adam"},
    {"mode": "single", "gpus": 1, "model": "resnet18", "batch": 64, "activation_checkpointing": 1},
    {"mode": "fsdp", "gpus": 2, "model": "resnet18", "batch": 64, "activation_checkpointing": 1},
    {"mode": "single", "gpus": 1, "model": "resnet18"},
    {"mode": "single", "gpus": 1, "model": "resnet18", "batch": 64},
    {"mode": "single", "gpus": 1, "model": "resnet18", "batch": 128},
    {"mode": "single", "gpus": 1, "model": "resnet50", "image_size": 64, "optimizer": "adamw", "weight_decay": 0.01},
    {"mode": "single", "gpus": 1, "model": "resnet18", "precision": "bf16", "allow_slow": 1},
    {"mode": "single", "gpus": 1, "model": "resnet18", "accumulate": 2, "channels_last": 1},
    {"mode": "single", "gpus": 1, "model": "resnet18", "train_only": "fc*,layer4*"},
    {"mode": "ddp", "gpus": 2, "model": "resnet50", "image_size": 32, "batch": 4},
    {"mode": "ddp", "gpus": 2, "model": "resnet18", "gradient_as_bucket_view": 1},
    {"mode": "independent", "gpus": 2, "model": "resnet18"},
    {"mode": "fsdp", "gpus": 2, "model": "resnet18", "reshard": 0},
    {"mode": "fsdp", "gpus": 3, "model": "resnet50", "image_size": 32, "batch": 4},
)


def smaller(row: dict) -> dict:
    """The options of a row in tests: with fewer steps and, where that suffices, a smaller network."""
    steps = 2 if row["mode"] in ("ddp", "zero1") else 1  # DDP makes its buckets again in the second step
    fewer = ALIKE | row | {"warmup": 0, "steps": steps, "image_size": 16}
    return fewer | ({} if row["mode"] == "single" else {"batch": 16} | NARROW)


def compared(record: Record) -> list[tuple[dict, dict]]:
    """(predicted, measured) of each process: bytes by kind. Of kernels' workspaces nothing is predicted."""
    plan = of_devices(record.config, info_of(record.config.data).classes)
    measured = [device["memory_parts"]["gib"] for part in record.samples for device in part.devices]
    unseen = {"buckets"} if record.config.mode == "horovod" else set()
    return [
        ({kind: size for kind, size in device.parts.items() if kind not in unseen},
         {kind: size * 2**30 for kind, size in gib.items()})
        for device, gib in zip(plan, measured, strict=True)
    ]  # fmt: skip


def tensors(parts: dict) -> float:
    """The sum without kernels' workspaces."""
    return sum(parts.values()) - parts.get(WORKSPACE, 0)


def off_by(pair: tuple[dict, dict]) -> float:
    """How far a prediction is from what was measured, as a share of that."""
    predicted, measured = pair
    return abs(tensors(predicted) / tensors(measured) - 1)


def main() -> None:
    """Run the rows, print them, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    path, rows = parser.parse_args().json, []
    with tempfile.TemporaryDirectory() as folder:
        for i, row in enumerate(ROWS):
            result = ranks.run(Path(folder) / f"run{i}", **ALIKE | row)
            if result.code:
                raise SystemExit(result.stderr)
            pairs = compared(result.loaded)
            (predicted, measured) = max(pairs, key=off_by)
            rows.append({"options": ALIKE | row, "processes": len(pairs), "command": result.loaded.command,
                         "predicted_mib": in_mib(predicted), "measured_mib": in_mib(measured)})  # fmt: skip
            print(rows[-1], flush=True)
    table = {"environment": collect_machine(), "rows": rows}
    if path:
        path.write_text(json.dumps(table, indent=1) + "\n")


def in_mib(parts: dict) -> dict[str, float]:
    return {kind: round(size / MIB, 3) for kind, size in parts.items()}


if __name__ == "__main__":
    main()
