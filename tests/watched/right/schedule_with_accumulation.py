"""Warm-up and cosine over the optimizer steps of one rank, two passes each; the rate ends near 0."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

EPOCHS, PASSES = 4, 2

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x[:, :1].sin())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 10, sampler=sampler)
steps = EPOCHS * len(loader) // PASSES
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - 3)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[3])
watch = Watch(model, optimizer)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for number, (a, b) in enumerate(watch(loader)):
        (nn.functional.mse_loss(model(a), b) / PASSES).backward()
        if number % PASSES == PASSES - 1:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
print(schedule.get_last_lr())
watch.report()
dist.destroy_process_group()
