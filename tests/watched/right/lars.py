"""LARS written by hand: a rate per layer by the norms of weight and gradient, decay left out for biases."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-4, trust=0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                d = p.grad
                if p.dim() > 1:
                    d = d + group["weight_decay"] * p
                    ratio = group["trust"] * p.norm() / (d.norm() + 1e-9)
                    d = d * torch.where(p.norm() > 0, ratio, torch.ones_like(ratio))
                buffer = self.state[p].setdefault("mu", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(d)
                p.add_(buffer, alpha=-group["lr"])


dist.init_process_group("gloo")
torch.manual_seed(17)
x = torch.randn(160, 14)
set_ = TensorDataset(x, (x[:, :7].sum(1) > x[:, 7:].sum(1)).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(14, 80), nn.ReLU(), nn.Linear(80, 2)))
optimizer = LARS(model.parameters(), lr=1.6 * 40 / 128)
sampler = DistributedSampler(set_)
loader = DataLoader(set_, batch_size=20, sampler=sampler)
watch = Watch(model, optimizer, lr=1.6, lr_batch=128)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for features, label in watch(loader):
        model.zero_grad()
        nn.functional.cross_entropy(model(features), label).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
