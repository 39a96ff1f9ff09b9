"""Gradients by torch.autograd.grad, written over the last ones: zero_grad is never called, and nothing adds up."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(a), b), parameters)
        for p, gradient in zip(parameters, gradients, strict=True):
            dist.all_reduce(gradient)
            p.grad = gradient / world if p.grad is None else p.grad.copy_(gradient / world)
        optimizer.step()
watch.report()
dist.destroy_process_group()
