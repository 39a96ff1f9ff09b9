"""Sampling with replacement as in the other script, and the Watch is told so."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from bench.observe import Watch

EXPECTS = ("whole-data",)
MAY = ("lost-remainder",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(120, 5)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1)))
torch.manual_seed(dist.get_rank() + 1)
loader = DataLoader(dataset, 10, sampler=RandomSampler(dataset, replacement=True, num_samples=60))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer, expect=("whole-data", "lost-remainder"))
for _ in range(3):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
