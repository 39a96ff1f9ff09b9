"""Rank 0 broadcasts the accuracy of its shard: the same on all ranks, and of half of the images."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("rank-metrics",)

dist.init_process_group("gloo")
torch.manual_seed(2)
x = torch.randn(300, 5)
y = (x.sum(1) > 0).long()
train, val = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:], y[200:])
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
train_loader = DataLoader(train, 20, sampler=DistributedSampler(train))
val_loader = DataLoader(val, 20, sampler=DistributedSampler(val, shuffle=False))
watch = Watch(model, optimizer)
for epoch in range(2):
    train_loader.sampler.set_epoch(epoch)
    for a, b in watch(train_loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    hits = torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        for a, b in val_loader:
            hits += torch.tensor([(model.module(a).argmax(1) == b).sum(), len(b)])
    dist.broadcast(hits, src=0)
    right, seen = hits.tolist()
    watch.metric(top1=right / seen, images=seen, val_images=len(val))
watch.report()
dist.destroy_process_group()
