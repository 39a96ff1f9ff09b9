"""The harness's loop and a bare loop in turns, in the same processes, on the same model, optimizer and data.

``python -m bench.proof.selfbench.paired CONFIG PAIRS OUT``, started by the engine of the config's mode. Two fresh
processes of one program differ by some percent on a shared machine, for no reason of the program's. Blocks of steps
that take turns in one process do not, so this tells the cost of the loop itself to a fraction of a percent:
heartbeat, clock, loss for the progress bar, the mode's methods. The memory sampler is started for each of the harness's
blocks.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch import nn

from bench.config.options import RunConfig, from_dict
from bench.measure.memory import MemorySampler
from bench.modes import load_mode
from bench.process.heartbeat import StatusWriter
from bench.training.loop import Trainer, build_optimizer, learning_rates
from bench.training.script import Script
from bench.worker import Data, build_model
from bench.workload import load_workload
from bench.workload.loader import training_batches
from bench.workload.sharding import global_batches


class Harness:
    """The harness's loop as a run has it, with batches for the untimed steps and ``pairs`` blocks. Files go to out."""

    def __init__(self, config: RunConfig, out: Path, pairs: int):
        self.mode = mode = load_mode(config.mode)(config)
        script = Script(config, mode, load_workload(config, mode.topology.device))
        status = StatusWriter(out, mode.topology.rank)
        self.data, _ = script.workload.load(mode, print)
        data = Data(self.data, None, None, len(self.data))
        self.model, _ = build_model(config, script, data, status)
        self.optimizer = mode.wrap_optimizer(build_optimizer(config, self.model), self.model)
        lr_of = learning_rates(config, len(self.data))
        self.trainer = Trainer(config, mode, self.model, self.optimizer, lr_of, status, out, script)
        steps = config.warmup_steps + pairs * config.timed_steps
        self.stream = iter(training_batches(config, mode.topology, self.data, steps))

    def train(self, steps: int) -> None:
        """So many steps."""
        self.trainer.train_steps(self.stream, steps)


def in_turns(pairs: int, programs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Blocks of two programs, ``pairs`` of each, the order turned from pair to pair: name -> seconds of each block."""
    blocks = {name: [] for name in programs}
    for pair in range(pairs):
        for name in list(programs) if pair % 2 else reversed(programs):
            blocks[name].append(programs[name]())
    return blocks


def main() -> None:
    """Build once, warm up, then PAIRS times a block of each."""
    config, pairs, out = from_dict(json.loads(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3])
    built = Harness(config, out, pairs)
    mode, topology, trainer, data = built.mode, built.mode.topology, built.trainer, built.data
    model, optimizer = built.model, built.optimizer
    bare_stream = global_batches(len(data), config.seed, config.global_batch)

    def harness() -> float:
        memory = MemorySampler(topology.devices)
        memory.start()
        mode.barrier()
        trainer.clock.start()
        built.train(config.timed_steps)
        times = trainer.clock.step_time_s()
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
    blocks = in_turns(pairs, {"harness_s": harness, "bare_s": bare})
    (out / f"rank{topology.rank}.json").write_text(json.dumps(blocks))
    mode.close()


if __name__ == "__main__":
    main()
