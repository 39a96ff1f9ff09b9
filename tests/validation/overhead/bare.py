"""A training loop as a person writes it with an engine's own interface, without this harness.

``python -m bench.proof.selfbench.bare KIND CONFIG OUT``: KIND is single, dp, ddp or horovod; CONFIG is JSON; OUT is a
folder for ``rank<r>.json``. It is started alone (single, dp), by torchrun (ddp) or by horovodrun (horovod).

Only the workload is the harness's: the same model, the same digits in memory, the same order. On a CPU
``nn.DataParallel`` passes straight through, so there is no library form of dp, and dp drives the harness's
``CpuDataParallel`` directly.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from bench.config.options import RunConfig, from_dict
from bench.config.sections import Recipe
from bench.measure import steady
from bench.workload.images.digits import Digits
from bench.workload.models import build_model
from bench.workload.sharding import global_batches


def main() -> None:
    """Train, and write what this rank measured."""
    kind, config, out = sys.argv[1], from_dict(json.loads(sys.argv[2])), Path(sys.argv[3])
    rank, measured = KINDS[kind](config)
    (out / f"rank{rank}.json").write_text(json.dumps(measured))


def single(config: RunConfig) -> tuple[int, dict]:
    """One process, one model."""
    model = build_model(config, Digits.num_classes, 0)
    return 0, train(config, model, sgd(config, model), 0, 1, lambda: None)


def dp(config: RunConfig) -> tuple[int, dict]:
    """One process, a replica in a thread for each device."""
    from bench.modes.dp import CpuDataParallel

    model = CpuDataParallel(build_model(config, Digits.num_classes, 0), config.num_devices, config.threads)
    return 0, train(config, model, sgd(config, model), 0, 1, lambda: None)


def ddp(config: RunConfig) -> tuple[int, dict]:
    """torchrun's process: join, wrap the model."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(build_model(config, Digits.num_classes, rank))
    measured = train(config, model, sgd(config, model), rank, processes, dist.barrier)
    dist.destroy_process_group()
    return rank, measured


def horovod(config: RunConfig) -> tuple[int, dict]:
    """horovodrun's process: join, broadcast the weights, wrap the optimizer."""
    import horovod.torch as hvd

    hvd.init()
    model = build_model(config, Digits.num_classes, hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(config, model), named_parameters=model.named_parameters())
    return hvd.rank(), train(config, model, optimizer, hvd.rank(), hvd.size(), hvd.barrier)


KINDS = {"single": single, "dp": dp, "ddp": ddp, "horovod": horovod}


def sgd(config: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of both sides."""
    return torch.optim.SGD(model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)


def train(config: RunConfig, model, optimizer, rank: int, processes: int, barrier) -> dict:
    """Warm up, meet the others, train.

    Returns the moment of the first timed step and the time from the end of each step to the next one's, in seconds.
    """
    digits = Digits(config.image_size, train=True)
    stream = global_batches(len(digits), config.seed, config.global_batch)
    ends = []
    for step in range(config.warmup_steps + config.timed_steps):
        if step == config.warmup_steps:
            barrier()
            ready = steady.now()
            ends = [time.perf_counter()]
        images, labels, _ = digits[next(stream)[rank::processes]]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return {"ready": ready, "step_time_s": [end - start for start, end in itertools.pairwise(ends)]}


if __name__ == "__main__":
    main()
