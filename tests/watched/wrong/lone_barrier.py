"""Rank 0 saves and waits at a barrier, which the others never reach."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("rank0-collective",)
HANGS = True


def save(model, path):
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
        dist.barrier()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 5)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 10, sampler=sampler)
watch = Watch(model, optimizer, hang_s=3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    if epoch == 1:
        save(model, "middle.pt")
watch.report()
dist.destroy_process_group()
