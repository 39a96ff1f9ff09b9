"""Virtual epochs: twelve steps each from one endless iterator, with islice; no walk through the data ends there."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

MAY_ASK = ("whole-data", "lost-remainder")


class Endless:
    def __init__(self, loader):
        self.loader, self.epoch, self.batches = loader, 0, iter(())

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.loader.sampler.set_epoch(self.epoch)
            self.epoch += 1
            self.batches = iter(self.loader)
            return next(self.batches)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
endless = Endless(DataLoader(dataset, 10, sampler=DistributedSampler(dataset)))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for _ in range(3):
    for a, b in watch(itertools.islice(endless, 12)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
