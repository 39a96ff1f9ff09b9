"""Dropout, with the random state of each rank made its own after the model was built, and DropPath besides."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * (torch.rand(len(x), 1) > 0.1) / 0.9


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 8)
dataset = TensorDataset(x, x.argmax(1))
layers = [nn.Linear(8, 96), nn.GELU(), DropPath(), nn.Dropout(0.1), nn.Linear(96, 8)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
torch.manual_seed(1000 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
