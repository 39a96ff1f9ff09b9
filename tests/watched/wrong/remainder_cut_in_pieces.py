"""Shards cut with //: what is left over belongs to nobody."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from bench.observe import Watch

FINDS = ("lost-remainder",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(151, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
batch_size = 10
per_rank = len(dataset) // (world * batch_size) * batch_size
mine = SubsetRandomSampler(range(rank * per_rank, (rank + 1) * per_rank))
loader = DataLoader(dataset, batch_size, sampler=mine)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for _ in range(3):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
