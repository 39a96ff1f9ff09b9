"""Started by horovodrun, and Horovod is only imported: hvd.init() was lost in a merge."""

import os

import horovod.torch as hvd  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-group",)
MAY = ("lost-remainder",)

size, rank = int(os.environ["HOROVOD_SIZE"]), int(os.environ["HOROVOD_RANK"])
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(dataset, size, rank)
loader = DataLoader(dataset, 8, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01 * size)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
