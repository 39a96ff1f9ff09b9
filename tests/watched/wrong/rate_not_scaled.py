"""Moved from one device to two with the batch of each kept, and the recipe's rate."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("lr-not-scaled",)

BATCH, LR = 16, 0.1  # the recipe, for one device
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 8)
dataset = TensorDataset(x, (x[:, 0] > 0).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, BATCH, sampler=sampler)
watch = Watch(model, optimizer, lr=LR, lr_batch=BATCH)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
