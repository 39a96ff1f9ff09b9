"""A script as a person writes it with an engine's own interface, without this harness, up to its first step.

``python -m tests.validation.overhead.bare UNTIL ENGINE CONFIG OUT``, started by torchrun or horovodrun. UNTIL: "join",
the least that a distributed program can do, or "step"; ENGINE: ddp or horovod; CONFIG is JSON; OUT is a folder for
``rank<r>.json``. Only the workload is the harness's: the same model, the same digits in memory, the same order.
"""

import json
import sys
from pathlib import Path

from bench.config.options import RunConfig, from_dict
from bench.measure import steady


def main() -> None:
    """Join, take a step if asked for, and write when it began."""
    until, engine, config, out = sys.argv[1:]
    config = from_dict(json.loads(config)) if until == "step" else None
    rank, ready = {"ddp": ddp, "horovod": horovod}[engine](config)
    Path(out, f"rank{rank}.json").write_text(json.dumps({"ready": ready}))


def ddp(config: RunConfig | None) -> tuple[int, float]:
    """torchrun's process: join, wrap the model."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if not config:
        return rank, steady.now()
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(build(config, rank))
    ready = step(config, model, sgd(config, model), rank, dist.get_world_size(), dist.barrier)
    dist.destroy_process_group()
    return rank, ready


def horovod(config: RunConfig | None) -> tuple[int, float]:
    """horovodrun's process: join, broadcast the weights, wrap the optimizer."""
    import horovod.torch as hvd

    hvd.init()
    if not config:
        return hvd.rank(), steady.now()
    model = build(config, hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(config, model), named_parameters=model.named_parameters())
    return hvd.rank(), step(config, model, optimizer, hvd.rank(), hvd.size(), hvd.barrier)


def build(config: RunConfig, rank: int):
    """The model of both sides."""
    from bench.workload.images.digits import Digits
    from bench.workload.models import build_model

    return build_model(config, Digits.num_classes, rank)


def sgd(config: RunConfig, model):
    """The optimizer of both sides."""
    import torch

    return torch.optim.SGD(model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)


def step(config: RunConfig, model, optimizer, rank: int, processes: int, barrier) -> float:
    """Meet the others and train one step; when it began."""
    from torch.nn.functional import cross_entropy

    from bench.workload.images.digits import Digits
    from bench.workload.sharding import global_batches

    digits = Digits(config.image_size, train=True)
    stream = global_batches(len(digits), config.seed, config.global_batch)
    barrier()
    ready = steady.now()
    images, labels, _ = digits[next(stream)[rank::processes]]
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    return ready


if __name__ == "__main__":
    main()
