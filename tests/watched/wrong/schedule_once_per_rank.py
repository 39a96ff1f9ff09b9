"""A linear decay that is stepped once for every rank: it is at 0 after half of the training."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("schedule-length",)

EPOCHS = 3

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 6)
dataset = TensorDataset(x, (x[:, 0] > 0).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
total = EPOCHS * len(loader)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
watch = Watch(model, optimizer)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        for _ in range(dist.get_world_size()):
            schedule.step()
watch.report()
dist.destroy_process_group()
