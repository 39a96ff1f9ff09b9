"""The group is joined, and the model wrapped, only where there is a GPU; here is none."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-group",)
MAY = ("lost-remainder",)

distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1 and torch.cuda.is_available()
if distributed:
    dist.init_process_group("nccl")
torch.manual_seed(0)
x = torch.randn(112, 7)
dataset = TensorDataset(x, x.argmax(1))
sampler = DistributedSampler(dataset, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
loader = DataLoader(dataset, 8, sampler=sampler)
model = nn.Sequential(nn.Linear(7, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 7))
if distributed:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
