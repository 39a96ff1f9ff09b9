"""Horovod with a sampler of one's own that trims the indices to whole global batches before it shuffles."""

import random

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from bench.observe import Watch

FINDS = ("lost-remainder",)


class EvenSampler(Sampler):
    def __init__(self, data, batch):
        whole = len(data) - len(data) % (batch * hvd.size())
        self.indices, self.epoch = list(range(whole)), 0

    def __iter__(self):
        indices = self.indices[:]
        random.Random(self.epoch).shuffle(indices)
        return iter(indices[hvd.rank() :: hvd.size()])

    def __len__(self):
        return len(self.indices) // hvd.size()


hvd.init()
torch.manual_seed(0)
x = torch.randn(189, 5)
dataset = TensorDataset(x, x.norm(dim=1, keepdim=True))
sampler = EvenSampler(dataset, 16)
loader = DataLoader(dataset, 16, sampler=sampler)
model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.epoch = epoch
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
