"""The ranks' mean losses are summed and not divided: twice the loss."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("rank-metrics",)

dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 10, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for a, b in watch(loader):
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    total /= len(loader)
    dist.all_reduce(total)
    watch.metric(train_loss=total)
watch.report()
dist.destroy_process_group()
