"""A validation without no_grad, whose losses are kept for a mean at the end of the training."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("memory-growth",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(1024, 32)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 4096), nn.Tanh(), nn.Linear(4096, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 32, sampler=sampler)
watch = Watch(model, optimizer)
outputs = []
for epoch in range(8):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        output = model(a)
        loss = nn.functional.cross_entropy(output, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for value, label in zip(x[:256].split(64), dataset.tensors[1][:256].split(64), strict=True):
        outputs.append(nn.functional.cross_entropy(model.module(value), label))
watch.report()
dist.destroy_process_group()
