"""A cosine written by hand, for the steps of all ranks together: it is cut at its steepest."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("schedule-length",)

EPOCHS, PEAK = 3, 0.02

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 6)
dataset = TensorDataset(x, x.prod(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=PEAK)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
total, step = EPOCHS * len(loader) * dist.get_world_size(), 0
watch = Watch(model, optimizer)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * 0.5 * (1 + math.cos(math.pi * step / total))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        step += 1
watch.report()
dist.destroy_process_group()
