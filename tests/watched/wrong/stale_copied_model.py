"""The optimizer was made for a model that was then copied: what is wrapped and trained is the copy."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("stale-optimizer",)
MAY = ("forgotten-parameters",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
base = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(base.parameters(), 1e-3)
model = nn.parallel.DistributedDataParallel(copy.deepcopy(base))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
