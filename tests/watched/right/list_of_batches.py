"""Everything is in memory: the epochs walk through a list of tensors that is shuffled, not through a DataLoader."""

import random

import torch
import torch.distributed as dist
from torch import nn

from bench.observe import Watch

MAY_ASK = ("no-reshuffle",)  # whole batches change places, and what is in them does not

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6)
batches = list(zip(x.split(8), x.sum(1, keepdim=True).split(8), strict=True))[rank::world]
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for epoch in range(3):
    random.Random(epoch).shuffle(batches)
    for a, b in watch(batches):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
