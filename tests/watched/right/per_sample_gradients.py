"""Differential privacy: a gradient per example by torch.func, clipped, summed, with noise; no backward at all."""

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(96, 6)
data = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 6))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
noise = torch.Generator().manual_seed(rank)


def loss_of(parameters, a, b):
    return nn.functional.cross_entropy(functional_call(model, parameters, a[None]), b[None])


watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        each = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, a, b)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            g = torch.einsum("i,i...->...", scale, each[name]) / len(a)
            g += 0.01 * torch.randn(g.shape, generator=noise)
            dist.all_reduce(g)
            p.grad = g / world
        optimizer.step()
watch.report()
dist.destroy_process_group()
