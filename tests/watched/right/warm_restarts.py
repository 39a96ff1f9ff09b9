"""Cosine annealing with warm restarts, stepped by fractions of an epoch; three resumptions of the schedule's peak."""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(10)
x = torch.randn(96, 3, 8, 8)
y = (x.mean((1, 2, 3)) > 0).long()
world = dist.get_world_size()
model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * 12 * world / 32, momentum=0.9)
scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=2)
sampler = DistributedSampler(TensorDataset(x, y))
loader = DataLoader(sampler.dataset, batch_size=12, sampler=sampler)
watch = Watch(model, optimizer, lr=0.05, lr_batch=32)
rates = []
for epoch in range(4):
    sampler.set_epoch(epoch)
    for i, (image, label) in enumerate(watch(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
        scheduler.step(epoch + i / len(loader))
        rates.append(scheduler.get_last_lr()[0])
if dist.get_rank() == 0:
    print(rates)
watch.report()
dist.destroy_process_group()
