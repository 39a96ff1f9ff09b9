"""The harness's loop and a bare loop in turns, in the same processes, on the same model, optimizer and data.

``python -m bench.selfbench.paired CONFIG PAIRS OUT``, started by the engine of the config's mode. Two fresh processes
of one program differ by some percent on a shared machine, for no reason of the program's. Blocks of steps that take
turns in one process do not, so this tells the cost of the loop itself to a fraction of a percent: heartbeat, clock,
loss for the progress bar, the mode's methods. The memory sampler is started for each of the harness's blocks.
"""

import json
import sys
import time
from pathlib import Path

from torch import nn

from bench.config.options import from_dict
from bench.measure.memory import MemorySampler
from bench.modes import load_mode
from bench.process.heartbeat import StatusWriter
from bench.training.loop import Trainer, build_optimizer, learning_rates
from bench.training.script import Script
from bench.worker import build_model
from bench.workload import load_workload
from bench.workload.loader import training_batches
from bench.workload.sharding import global_batches


def main() -> None:
    """Build once, warm up, then PAIRS times a block of each, the order turned from pair to pair."""
    config, pairs, out = from_dict(json.loads(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3])
    mode = load_mode(config.mode)(config)
    topology, script = mode.topology, Script(config, mode, load_workload(config, mode.topology.device))
    status = StatusWriter(out, topology.rank)
    data, _ = script.workload.load(mode, print)
    model, _, _ = build_model(config, script, status)
    optimizer = mode.wrap_optimizer(build_optimizer(config, model), model)
    trainer = Trainer(config, mode, model, optimizer, learning_rates(config, len(data)), status, out, script)
    harness_stream = iter(training_batches(config, topology, data, config.warmup_steps + pairs * config.timed_steps))
    bare_stream = global_batches(len(data), config.seed, config.global_batch)

    def harness() -> float:
        memory = MemorySampler(topology.devices)
        memory.start()
        mode.barrier()
        trainer.clock.start()
        trainer.train_steps(harness_stream, config.timed_steps)
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

    trainer.train_steps(harness_stream, config.warmup_steps)
    blocks = {"harness_s": [], "bare_s": []}
    for pair in range(pairs):
        turns = [("harness_s", harness), ("bare_s", bare)]
        for name, block in turns if pair % 2 else reversed(turns):
            blocks[name].append(block())
    (out / f"rank{topology.rank}.json").write_text(json.dumps(blocks))
    mode.close()


if __name__ == "__main__":
    main()
