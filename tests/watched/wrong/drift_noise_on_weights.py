"""Noise added to the weights after some steps, from generators seeded by rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("drift",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 8)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
step = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:  # out of a local minimum
            with torch.no_grad():
                model.module[2].weight.add_(1e-3 * torch.randn_like(model.module[2].weight))
watch.report()
dist.destroy_process_group()
