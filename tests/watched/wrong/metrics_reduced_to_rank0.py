"""dist.reduce to rank 0, and the best checkpoint chosen on every rank by a number that only rank 0 has."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("rank-metrics",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(8)
x = torch.randn(160, 8)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 16, sampler=sampler)
vx = torch.randn(64, 8, generator=torch.Generator().manual_seed(rank))
watch = Watch(model, optimizer)
best = float("inf")
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        loss = (model.module(vx) - vx.sum(1, keepdim=True)).pow(2).mean()
    dist.reduce(loss, dst=0)
    loss = loss.item() / world
    watch.metric(val_loss=loss)
    best = min(best, loss)
watch.report()
dist.destroy_process_group()
