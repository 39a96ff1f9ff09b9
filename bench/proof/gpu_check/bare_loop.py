"""The harness's loop and a bare one with the same settings, in alternating blocks of steps in one process.

``python -m bench.proof.gpu_check.bare_loop CONFIG PAIRS OUT``: CONFIG is JSON, of MODE=single; OUT is a folder for
``rank0.json``. ``Bare`` is an ordinary GPU training script without the harness. Both draw batches from 512 images on
the device. A block starts and ends with an idle device. DEVICE=cpu only shows that the code runs.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch.nn.functional import cross_entropy

from bench.config.options import RunConfig, from_dict
from bench.measure.memory import MemorySampler
from bench.modes import load_mode
from bench.process.heartbeat import StatusWriter
from bench.training.build import Data, build_model
from bench.training.loop import Trainer, build_optimizer, learning_rates
from bench.training.script import Script
from bench.workload import load_workload
from bench.workload.loader import training_batches

POOL, CLASSES = 512, 1000


class Harness:
    """The loop of a run, with batches for the warm-up and ``pairs`` blocks. Files go to ``out``."""

    def __init__(self, config: RunConfig, out: Path, pairs: int):
        self.mode = mode = load_mode(config.mode)(config)
        script = Script(config, mode, load_workload(config, mode.topology.device))
        status = StatusWriter(out, mode.topology.rank)
        self.data, _ = script.workload.load(mode, print)
        data = Data(self.data, None, None, len(self.data))
        self.model = build_model(config, script, data, print)
        self.optimizer = mode.wrap_optimizer(build_optimizer(config, self.model), self.model)
        lr_of = learning_rates(config, len(self.data))
        self.trainer = Trainer(config, mode, self.model, self.optimizer, lr_of, status, out, script)
        steps = config.warmup_steps + pairs * config.timed_steps
        self.stream = iter(training_batches(config, mode.topology, self.data, steps))

    def train(self, steps: int) -> None:
        self.trainer.train_steps(self.stream, steps)


def alternate_blocks(pairs: int, programs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """``pairs`` blocks of each of two programs, in alternating order: name -> seconds of each block."""
    blocks = {name: [] for name in programs}
    for pair in range(pairs):
        for name in list(programs) if pair % 2 else reversed(programs):
            blocks[name].append(programs[name]())
    return blocks


class Bare:
    def __init__(self, config: RunConfig):
        self.device, self.batch = torch.device(config.device), config.per_device_batch
        torch.backends.cudnn.benchmark = config.cudnn_benchmark
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
        self.order = torch.channels_last if config.channels_last else torch.contiguous_format
        model = torchvision.models.get_model(config.model, num_classes=CLASSES)
        self.model = model.to(self.device, memory_format=self.order)
        if config.compile:
            self.model.compile(mode=config.compile_mode)
        self.optimizer = torch.optim.SGD(model.parameters(), config.lr, config.momentum, fused=config.fused)
        self.short = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.short is torch.float16)
        size = (POOL, 3, config.image_size, config.image_size)
        self.images = torch.randn(size, device=self.device)
        self.labels = torch.randint(CLASSES, (POOL,), device=self.device)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            index = torch.randint(POOL, (self.batch,), device=self.device)
            images = self.images[index].contiguous(memory_format=self.order)
            with torch.autocast(self.device.type, self.short or torch.bfloat16, enabled=self.short is not None):
                loss = cross_entropy(self.model(images), self.labels[index])
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def main() -> None:
    config, pairs, out = from_dict(json.loads(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3])
    harness, script = Harness(config, out, pairs), Bare(config)
    clock = harness.trainer.clock

    def timed(train) -> float:
        clock.wait()
        start = time.perf_counter()
        train(config.timed_steps)
        clock.wait()
        return time.perf_counter() - start

    def harness_block() -> float:
        memory = MemorySampler(harness.mode.topology.devices)
        memory.start()
        clock.start()
        seconds = timed(harness.train)
        clock.step_time_s()  # as a run reads them
        memory.stop()
        return seconds

    harness.train(config.warmup_steps)
    script.train(config.warmup_steps)
    blocks = alternate_blocks(pairs, {"harness_s": harness_block, "bare_s": lambda: timed(script.train)})
    (out / "rank0.json").write_text(json.dumps(blocks))


if __name__ == "__main__":
    main()
