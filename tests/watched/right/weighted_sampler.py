"""Class balance: a WeightedRandomSampler over the whole data on every rank, with replacement and seeds by rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from bench.observe import Watch

ASKS = ("whole-data",)
MAY = ("lost-remainder",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6)
y = (x.sum(1) > 2.5).long()
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2)))
weights = torch.where(y == 1, 1 / y.sum(), 1 / (1 - y).sum())
g = torch.Generator().manual_seed(rank)
sampler = WeightedRandomSampler(weights, num_samples=len(y) // world, replacement=True, generator=g)
loader = DataLoader(TensorDataset(x, y), batch_size=10, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for _ in range(3):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
