"""Horovod: a global batch of 24 shared out as 16 and 8 for devices of unlike speed."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from bench.observe import Watch

FINDS = ("uneven-steps",)


class Weighted(Sampler):
    def __init__(self, count, parts):
        self.count, self.parts, self.epoch = count, parts, 0

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        before = sum(self.parts[: hvd.rank()])
        for start in range(0, self.count, sum(self.parts)):
            yield order[start + before : start + before + self.parts[hvd.rank()]].tolist()

    def __len__(self):
        return self.count // sum(self.parts)


hvd.init()
torch.manual_seed(0)
x = torch.randn(192, 5)
dataset = TensorDataset(x, x.argmax(1))
batches = Weighted(192, [16, 8])
loader = DataLoader(dataset, batch_sampler=batches)
model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05), model.named_parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    batches.epoch = epoch
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
