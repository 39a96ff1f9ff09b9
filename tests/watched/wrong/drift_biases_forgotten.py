"""Gradients averaged by hand, but only those of matrices: the biases go their own ways."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("drift",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
        optimizer.step()
watch.report()
dist.destroy_process_group()
