"""Horovod: an accumulation of which only zero_grad waits for the fourth pass, while every pass takes a step."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-zero-grad",)

hvd.init()
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (a, b) in enumerate(watch(loader), 1):
        (nn.functional.cross_entropy(model(a), b) / 4).backward()
        optimizer.step()
        if number % 4 == 0:
            optimizer.zero_grad()
watch.report()
