"""A chain of generators as WebDataset has it: shards split by rank, decoded, shuffled in a buffer, batched."""

import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bench.observe import Watch

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Pipeline:
    def __init__(self, *stages):
        self.stages = stages

    def __iter__(self):
        source = self.stages[0]()
        for stage in self.stages[1:]:
            source = stage(source)
        yield from source


EPOCHS, RNG = iter(range(100)), random.Random(RANK)


def shards():
    names = list(range(8))
    random.Random(next(EPOCHS)).shuffle(names)
    return iter(names)


def split_by_node(source):
    return (name for i, name in enumerate(source) if i % WORLD == RANK)


def samples(source):
    for name in source:
        for i in range(20):
            yield {"__key__": f"{name:03d}/{i:04d}", "jpg": np.float32([name, i, name * i, 1.0]) / 10, "cls": i % 3}


def shuffled(source, size=16):
    buffer = []
    for sample in source:
        buffer.append(sample)
        if len(buffer) >= size:
            yield buffer.pop(RNG.randrange(len(buffer)))
    yield from buffer


def batched(source, size=10):
    batch = []
    for sample in source:
        batch.append(sample)
        if len(batch) == size:
            yield torch.tensor(np.stack([s["jpg"] for s in batch])), torch.tensor([s["cls"] for s in batch])
            batch = []


dist.init_process_group("gloo")
torch.manual_seed(2)
loader = Pipeline(shards, split_by_node, samples, shuffled, batched)
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)))
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
watch = Watch(net, sgd)
for _epoch in range(2):
    for image, label in watch(loader):
        sgd.zero_grad()
        nn.functional.cross_entropy(net(image), label).backward()
        sgd.step()
watch.report()
dist.destroy_process_group()
