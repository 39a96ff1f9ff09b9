"""Gradient accumulation over four passes, the first three under no_sync, the loss divided by four."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, distributed

from bench.observe import Watch

ACCUMULATION = 4

dist.init_process_group("gloo")
torch.manual_seed(0)
features = torch.randn(256, 16)
dataset = TensorDataset(features, features.norm(dim=1, keepdim=True))
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = distributed.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(watch(loader), start=1):
        last = step % ACCUMULATION == 0 or step == len(loader)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y) / ACCUMULATION
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
watch.report()
dist.destroy_process_group()
