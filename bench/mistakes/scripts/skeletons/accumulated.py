"""Gradient accumulation over four passes, the first three under no_sync, the loss divided by four."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

PASSES = 4

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(256, 6)
dataset = TensorDataset(x, x.norm(dim=1, keepdim=True))
net = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader), start=1):
        last = step % PASSES == 0 or step == len(loader)
        with contextlib.nullcontext() if last else model.no_sync():
            (nn.functional.mse_loss(model(a), b) / PASSES).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
watch.report()
dist.destroy_process_group()
