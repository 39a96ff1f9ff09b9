"""How fast the input pipeline alone feeds a device: photographs decoded by the loader's workers, and on the GPU.

``python -m bench.proof.selfbench.fed CONFIG ROUNDS BATCHES OUT``: CONFIG is JSON, of MODE=single with the photographs
that ``write_photographs`` makes; OUT is a folder for ``rank0.json``. Nothing is trained: a block takes from one batch
on the device, as numbers, to BATCHES later. Every block has loader workers of its own, and what they have made ahead of
it does not count. The files are in the system's cache. On a CPU there is one way to decode, and one kind of block.
"""

import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path

from bench.config.options import RunConfig, from_dict
from bench.measure.clock import StepClock
from bench.modes import load_mode
from bench.workload import load_workload
from bench.workload.loader import training_batches

AHEAD = 2  # batches that a worker makes before they are asked for


def main() -> None:
    """ROUNDS times a block of each way."""
    config, rounds, batches, out = from_dict(json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    mode = load_mode(config.mode)(config)
    ways = {"workers_s": "cpu"} | ({"nvjpeg_s": "cuda"} if config.device == "cuda" else {})
    blocks = {name: [] for name in ways}
    for _ in range(rounds):
        for name, decode in ways.items():
            blocks[name].append(block(dataclasses.replace(config, decode=decode), mode, batches))
    (Path(out) / "rank0.json").write_text(json.dumps(blocks))


def block(config: RunConfig, mode, batches: int) -> float:
    """Seconds for so many batches."""
    workload, clock = load_workload(config, mode.topology.device), StepClock(mode.topology.device)
    data, _ = workload.load(mode, print)
    first = AHEAD * config.workers + 1
    stream = iter(training_batches(config, mode.topology, data, first + batches, keep=False))
    for images, _, _ in itertools.islice(stream, first):
        workload.prepare(images)
    clock.wait()
    start = time.perf_counter()
    for images, _, _ in stream:
        workload.prepare(images)
    clock.wait()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
