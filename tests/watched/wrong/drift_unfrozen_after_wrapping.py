"""Gradual unfreezing: layers that were frozen when DDP was made are trained later, and DDP never exchanges them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("drift",)
MAY = ("no-exchange",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.argmax(1))
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
for p in net[:3].parameters():
    p.requires_grad = False
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    if epoch == 1:
        for p in net[2].parameters():
            p.requires_grad = True
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
