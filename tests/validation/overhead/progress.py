"""What lines of progress add to a step, from their parts: ``python -m bench.proof.selfbench.progress PAIRS OUT``.

Whole runs with and without them differ by some percent on a shared machine, for no reason of theirs. So each part is
timed by itself, by the clock and where nothing else goes on: a step after which nothing is due, the numbers of a window
in the heartbeat (one a second), and a line in the rank's log (one in ``LINE_S`` seconds). A step of ``STEP_S`` seconds
is then this long without them, and longer by their sum with them. STEP_S is a tenth of the reference's, so its share is
ten times theirs. The launcher reads the heartbeats in a process of its own; that is not in here.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

from bench.config.options import RunConfig
from bench.process.heartbeat import LINE_S, StatusWriter
from bench.training.progress import WINDOW_S, Progress

STEP_S = 0.02
QUIET, TOLD = 5000, 50  # calls that are timed at once


def main() -> None:
    """PAIRS times each part; what a step then takes with them and without."""
    pairs, out = int(sys.argv[1]), Path(sys.argv[2])
    config = RunConfig(data="synthetic", per_device_batch=32)
    never, always = (Progress(dataclasses.replace(config, print_every=every), StatusWriter(out, 0), torch.device("cpu"))
                     for every in (10**9, 1))  # fmt: skip
    blocks = {"harness_s": [], "bare_s": [], "quiet_s": [], "window_s": [], "line_s": []}
    for _ in range(1 + pairs):  # the first imports what the others use
        quiet, window, line = seconds(never, QUIET), seconds(never, TOLD, window=True), seconds(always, TOLD)
        added = quiet + window * STEP_S / WINDOW_S + line * STEP_S / LINE_S
        for name, value in zip(blocks, (STEP_S + added, STEP_S, quiet, window, line), strict=True):
            blocks[name].append(value)
    (out / "rank0.json").write_text(json.dumps({name: values[1:] for name, values in blocks.items()}))


def seconds(progress: Progress, steps: int, window: bool = False) -> float:
    """The mean of so many steps. window: each ends one."""
    progress.start(0, steps, 0)
    progress.loss = 1.0
    start = time.perf_counter()
    for step in range(1, 1 + steps):
        if window:
            progress.since -= WINDOW_S
        progress.step_done(step, 0.0, 0.1, 64 * step)
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    main()
