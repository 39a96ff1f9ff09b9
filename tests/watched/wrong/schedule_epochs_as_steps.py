"""CosineAnnealingLR made for epochs, after a warm-up, and stepped with every batch: the rate goes up and down."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("schedule-length",)

EPOCHS = 4

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x[:, :1].sin())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS - 2)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[2])
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 10, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        schedule.step()
watch.report()
dist.destroy_process_group()
