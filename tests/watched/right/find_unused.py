"""A network that leaves one of its branches out in turn: find_unused_parameters=True."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Stochastic(nn.Module):
    """Stochastic depth: the same branch on all ranks."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(9, 64), nn.Linear(64, 1)
        self.branches = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.dice = random.Random(5)

    def forward(self, x):
        h = self.stem(x).relu()
        for branch in self.branches:
            if self.dice.random() < 0.7:
                h = h + branch(h).relu()
        return self.head(h)


dist.init_process_group("gloo")
torch.manual_seed(18)
x = torch.randn(128, 9)
dataset = TensorDataset(x, x.max(1, keepdim=True).values)
model = nn.parallel.DistributedDataParallel(Stochastic(), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for value, wanted in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(value), wanted).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
