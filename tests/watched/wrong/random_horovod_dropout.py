"""Horovod's example has torch.manual_seed(args.seed) on every rank; F.dropout in the forward pass."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("same-random",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training))


hvd.init()
torch.manual_seed(42)
x = torch.randn(96, 16)
dataset = TensorDataset(x, x[:, :4].argmax(1))
model = Net()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
