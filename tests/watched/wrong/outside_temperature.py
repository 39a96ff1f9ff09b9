"""A temperature that joins the optimizer in the second epoch: its gradient is averaged, and its start is any value."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-init",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6)))
temperature = nn.Parameter(torch.rand(()) + 0.5)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    if epoch == 1:
        optimizer.add_param_group({"params": [temperature]})
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a) / temperature, b).backward()
        dist.all_reduce(temperature.grad)
        temperature.grad /= world
        optimizer.step()
        if epoch == 0:
            temperature.grad = None
watch.report()
dist.destroy_process_group()
