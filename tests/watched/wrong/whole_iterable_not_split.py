"""An IterableDataset that forgets the ranks: each reads the same stream."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from bench.observe import Watch

FINDS = ("whole-data",)


class Numbers(IterableDataset):
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        for _ in range(80):
            x = torch.randn(6, generator=g)
            yield x, x.sum().reshape(1)


dist.init_process_group("gloo")
torch.manual_seed(0)
numbers = Numbers()
loader = DataLoader(numbers, batch_size=8)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    numbers.epoch = epoch
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
