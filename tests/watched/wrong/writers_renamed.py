"""Every rank writes a file of its own and renames it onto the same last name."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("many-writers",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.rand(96, 6)
dataset = TensorDataset(x, x.median(1, keepdim=True).values)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
temporary = Path(f"model.{os.getpid()}.tmp")
torch.save(model.module.state_dict(), temporary)
temporary.replace("model.pt")
watch.report()
dist.destroy_process_group()
