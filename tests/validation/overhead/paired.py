"""The harness and a bare loop in turns, in the same processes: ``python -m tests.validation.overhead.paired KIND CONFIG
PAIRS OUT [NBYTES]``, started by the engine of the config's mode.

Two fresh processes of one program differ by some percent on a shared machine, for no reason of the program's. Blocks
that take turns in one process do not, so this tells a cost to a fraction of a percent. KIND:

- loop: training steps on the same model, optimizer and data. What the harness adds: heartbeat, clock, loss for the
  progress bar, the mode's methods; its memory sampler is started for each of its blocks;
- messages: all-reduces of NBYTES as `bench network` times them, and in a loop of ``torch.distributed.all_reduce``.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from bench.config.options import RunConfig, from_dict
from bench.measure.memory import MemorySampler
from bench.modes import load_mode
from bench.proof.gpu_check.bare_loop import Harness, alternate_blocks
from bench.tasks.network.plan import ELEMENT
from bench.tasks.network.rank import BLOCK_S, operations_of, seconds_of
from bench.workload.sharding import global_batches


def main() -> None:
    """Write the seconds of each block, as this rank measured them."""
    kind, config, pairs, out = sys.argv[1], from_dict(json.loads(sys.argv[2])), int(sys.argv[3]), Path(sys.argv[4])
    if kind == "loop":
        mode, programs = loop(config, pairs, out)
    else:
        mode, programs = messages(config, int(sys.argv[5]))
    blocks = alternate_blocks(pairs, programs)
    (out / f"rank{mode.topology.rank}.json").write_text(json.dumps(blocks))
    mode.close()


def loop(config: RunConfig, pairs: int, out: Path) -> tuple:
    """The mode, and both loops, warmed up."""
    built = Harness(config, out, pairs)
    mode, topology, clock = built.mode, built.mode.topology, built.trainer.clock
    model, optimizer, data = built.model, built.optimizer, built.data
    bare_stream = global_batches(len(data), config.seed, config.global_batch)

    def harness() -> float:
        memory = MemorySampler(topology.devices)
        memory.start()
        mode.barrier()
        clock.start()
        built.train(config.timed_steps)
        times = clock.step_time_s()
        memory.stop()
        return sum(times)

    def bare() -> float:
        mode.barrier()
        start = time.perf_counter()
        for _ in range(config.timed_steps):
            images, labels, _ = data[next(bare_stream)[topology.rank :: topology.world_size]]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return time.perf_counter() - start

    built.train(config.warmup_steps)
    return mode, {"harness_s": harness, "bare_s": bare}


def messages(config: RunConfig, nbytes: int) -> tuple:
    """The mode, and both ways to time an all-reduce, in blocks of about BLOCK_S."""
    mode = load_mode(config.mode)(config)
    operation, tensor = operations_of(mode)[1], torch.zeros(nbytes // ELEMENT)  # the all-reduce
    times = max(1, round(BLOCK_S / max(mode.gather(seconds_of(operation.once, tensor, 5, mode)))))

    def bare() -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(tensor)
        return (time.perf_counter() - start) / times

    return mode, {"harness_s": lambda: seconds_of(operation.once, tensor, times, mode), "bare_s": bare}


if __name__ == "__main__":
    main()
