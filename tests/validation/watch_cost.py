"""What a Watch adds to a step: ``python -m tests.validation.watch_cost [--json FILE]``.

One process, a model of two layers and batches from a list in memory, so that a step is short and what the Watch adds
can be seen. Epochs with the Watch and without take turns; the figures are medians over their steps.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.measure.environment import collect_machine
from bench.observe import Watch

FIRST, EPOCHS, STEPS = 3, 12, 400
SHARE = 0.01


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.validation.watch_cost", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    torch.set_num_threads(1)
    first, after = measure()
    table = {"environment": collect_machine(), "epochs": EPOCHS, "steps": STEPS, "first_epochs": FIRST,
             "first_ms": 1e3 * first, "after_ms": 1e3 * after, "share": SHARE}  # fmt: skip
    print(f"first {FIRST} epochs: {1e3 * first:.3f} ms per step; after: {1e3 * after:.3f} ms per step, which is "
          f"{100 * SHARE:g} % of a step of {1e3 * after / SHARE:.1f} ms")  # fmt: skip
    if path:
        path.write_text(json.dumps(table, indent=1) + "\n")


def measure() -> tuple[float, float]:
    """Seconds that the Watch adds to a step: in the first epochs, and after them."""
    plain, watched = script(), script()
    watch = Watch(watched[0], watched[1])
    added = []
    for _ in range(EPOCHS):
        without, beside = epoch(*plain, plain[2]), epoch(*watched, watch(watched[2]))
        added.append(beside - without)
    watch.report()
    return statistics.median(added[:FIRST]), statistics.median(added[FIRST:])


def script() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """A model, its optimizer and its loader."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.randn(STEPS * 8, 32), torch.randint(10, (STEPS * 8,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data, batch_size=8, shuffle=True)


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, batches) -> float:
    """The median step of one epoch, in seconds, loading included."""
    times, began = [], time.perf_counter()
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - began)
        began = now
    return statistics.median(times)


if __name__ == "__main__":
    main()
