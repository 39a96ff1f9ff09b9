"""A stream that comes over a slow line: a generator, without a DataLoader."""

import time

import torch
import torch.distributed as dist
from torch import nn

from bench.observe import Watch

FINDS = ("loader-starvation",)


def stream(epoch, rank, world, count=24):
    for i in range(rank, count, world):
        time.sleep(0.06)
        g = torch.Generator().manual_seed(epoch * count + i)
        x = torch.randn(8, 6, generator=g)
        yield x, x.mean(1, keepdim=True)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    for a, b in watch(stream(epoch, dist.get_rank(), dist.get_world_size())):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
