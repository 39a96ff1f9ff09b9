"""OneCycleLR made for the batches of one device: with two ranks it ends in the middle."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("schedule-length",)

EPOCHS, BATCH = 3, 8

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(256, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps_per_epoch = len(dataset) // BATCH
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, epochs=EPOCHS, steps_per_epoch=steps_per_epoch)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, BATCH, sampler=sampler)
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
