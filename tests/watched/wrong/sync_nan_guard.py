"""A guard against nan in every step, as an if on a tensor, in a function of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("host-sync",)


def guard(loss):
    if torch.isnan(loss).any():
        raise FloatingPointError("nan")
    return loss


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 9)
dataset = TensorDataset(x, x.prod(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        guard(nn.functional.mse_loss(model(a), b)).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
