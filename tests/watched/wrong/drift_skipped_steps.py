"""A step is skipped where the rank's own loss is an outlier; gradients are exchanged all the same."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("drift",)
MAY = ("uneven-steps", "host-sync")

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 7)
dataset = TensorDataset(x, x.pow(3).sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    losses = []
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        losses.append(loss.detach())
        if losses[-1] <= torch.stack(losses).median():
            optimizer.step()
watch.report()
dist.destroy_process_group()
