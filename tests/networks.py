"""Made-up records of `bench network`: times that a link of a known alpha and beta would take, with a known noise. They
never stand for a measurement."""

import math
import random
from pathlib import Path

from bench import formulas
from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.tasks.network.plan import parse_sizes
from bench.tasks.network.record import NetworkRecord, checked
from tests.records import CORES, environment

ALPHA, BETA = 80e-6, 0.8e-9  # seconds; seconds per byte
PRODUCTS = {"fp32": (512, 1024), "bf16": (1024,)}  # rank r takes 1 + r ms


def data(
    backend: str = "gloo", ranks: int = 2, rounds: int = 10, sizes: str = "4KiB-256MiB", noise: float = 0.03,
    alpha: float = ALPHA, beta: float = BETA, label: str = "", nodes: tuple[str, ...] = ("",), number: int = 1,
    others: float = 0.0, seed: int = 0, left_out: tuple[int, ...] = (), gathers: bool = False,
) -> dict:  # fmt: skip
    """What its file holds. noise: standard deviation of the logarithm of a time. nodes: the names of the machines.
    number: of the suite. gathers: with all-gather, reduce-scatter and matrix products, which older records do not have.
    others: the share of the CPU that other processes took."""
    draw = random.Random(f"{seed} {backend}")
    device = "cuda" if backend == "nccl" else "cpu"
    mode = "horovod" if backend == "horovod" else "ddp"
    suite = f"network-20260102-0304{number:02d}-0000"
    config = RunConfig(mode=mode, num_devices=ranks).labelled(suite=suite, study="network")
    config = resolve(config, device, CORES[device])
    lines = {
        "ping_pong": lambda size: 2 * (alpha + beta * size),
        "all_reduce": lambda size: formulas.ring_all_reduce_s(size, ranks, alpha, beta),
        "all_gather": lambda size: formulas.ring_gather_s(size, ranks, 2 * alpha, 2 * beta),
        "reduce_scatter": lambda size: formulas.ring_gather_s(size, ranks, 3 * alpha, 3 * beta),
    }
    names = ["all_reduce"] if backend == "horovod" else ["ping_pong", "all_reduce"]
    names += ["all_gather", "reduce_scatter"] * (gathers and backend != "horovod")
    operations = []
    for name in names:
        measured = []
        for size in (size for size in parse_sizes(sizes) if size not in left_out):
            slowest = [lines[name](size) * math.exp(draw.gauss(0, noise)) for _ in range(rounds)]
            others_s = [[0.9 * s for s in slowest]] * (ranks - 1 if name != "ping_pong" else 0)
            measured.append({"bytes": size, "in_a_row": 5, "seconds": [slowest, *others_s]})
        left = [{"bytes": size, "expected_s": lines[name](size)} for size in left_out]
        timed = list(range(ranks)) if name != "ping_pong" else [0, ranks - 1]
        operations.append({"name": name, "ranks": timed, "sizes": measured, "left_out": left})
    share = ranks // len(nodes)
    several = len(nodes) > 1
    loads = [{"machine": rank // share, "own_cpu_s": 4.0, "wall_s": 10.0, "cores": 2, "steal_s": 0.0,
              "machine_cpu_s": 4.0 * share + 20.0 * others} for rank in range(ranks)]  # fmt: skip
    products = [
        {"precision": precision, "n": size, "seconds": [(1 + rank) * 1e-3 for rank in range(ranks)]}
        for precision, sizes in PRODUCTS.items()
        for size in sizes
    ]
    return {
        "network_version": 1,
        "run_id": f"20260102-0304{number:02d}-{mode}-{ranks}xnetwork-{backend}",
        "status": "ok",
        "started_at": f"2026-01-02T03:04:{number:02d}.000+00:00",
        "config": to_dict(config),
        "backend": backend,
        "carrier": "nccl" if device == "cuda" else "gloo",
        "plan": {"sizes": list(parse_sizes(sizes)), "rounds": rounds, "budget_s": 150.0},
        **({"network": {"label": label}} if label else {}),
        "topology": {"world_size": ranks, "num_devices": ranks, "device": device, "threads_per_process": 1},
        "environment": environment(device, ranks),
        "nodes": [
            {"ranks": list(range(i * share, (i + 1) * share))} | ({"name": name, "devices": share} if several else {})
            for i, name in enumerate(nodes)
        ],
        "operations": operations,
        **({"products": products} if gathers else {}),
        "load": loads,
        "provenance": {},
    }


def record(**made) -> NetworkRecord:
    return checked(data(**made), Path("made-up") / "network.json")


def both(**made) -> list[NetworkRecord]:
    """What one command measured with Gloo and Horovod, whose messages take 1.2 ms more and twice as long a byte."""
    slower = {"alpha": made.get("alpha", ALPHA) + 1.2e-3, "beta": 2 * made.get("beta", BETA)}
    return [record(backend="gloo", **made), record(backend="horovod", **made | slower)]
