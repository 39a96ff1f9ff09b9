"""Made-up records of `bench time`. They never stand for a measurement."""

import copy
import json
from pathlib import Path

from bench.foreign.record import KIND, NAME, ForeignRecord, load
from tests.records import environment

SPIN = {  # what a Watch sees of a sampler without set_epoch
    "world_size": 2,
    "num_devices": 2,
    "exchanges": True,
    "trains": True,
    "data": {"num_images": 64, "global_batch": 16, "same_neighbours": 1.0, "epochs": [], "sampler": None},
}


def data(
    name: str = "train.py", step_s: float = 0.1, ranks: int = 2, batch: int | None = 32, steps: int = 20,
    number: int = 1, observed: dict | None = SPIN, sha: str = "0" * 64, others: float = 0.0,
) -> dict:  # fmt: skip
    machine_s = 4.0 * ranks + 20.0 * others
    load = {"own_cpu_s": 4.0, "machine_cpu_s": machine_s, "wall_s": 10.0, "cores": 2, "steal_s": 0.0}
    samples = [
        {
            "rank": rank, "pid": 100 + rank, "threads": 1, "steps_taken": steps + 22,
            "step_number": list(range(21, 21 + steps)), "step_time_s": [step_s / (1 + rank)] * steps,
            "data_wait_s": [0.1 * step_s] * steps, "watch_s": [0.0] * steps, "between_s": [0.5],
            "images": batch // ranks if batch else None, "load": load,
            "devices": [{"device": "cpu", "peak_memory_gib": {"pss": 0.5}, "timeline": {"time_s": [0.0]}}],
        }
        for rank in range(ranks)
    ]  # fmt: skip
    return {
        "foreign_version": 1,
        "kind": KIND,
        "run_id": f"foreign-20260102-0304{number:02d}-{name}",
        "started_at": f"2026-01-02T03:04:{number:02d}.000+00:00",
        "name": name,
        "command": f"torchrun --nproc-per-node={ranks} {name}",
        "script_sha256": sha,
        "asked": {"warmup": 20, "steps": None, "watch": True, "batch": None},
        "engine": "DistributedDataParallel",
        "topology": {
            "world_size": ranks, "num_devices": ranks, "device": "cpu", "global_batch": batch,
            "batch_from": "Watch" if batch else None, "threads_total": ranks,
        },
        "environment": environment("cpu", ranks),
        "samples": samples,
        "observed": copy.deepcopy(observed),
        "unheard": {} if observed else {"drift": "switched off (WATCH=0)"},
        "provenance": {},
    }  # fmt: skip


def write(folder: Path, made: dict) -> ForeignRecord:
    (place := folder / made["run_id"]).mkdir(parents=True, exist_ok=True)
    (place / NAME).write_text(json.dumps(made))
    return load(place / NAME)
