"""The outputs of all steps are collected for a metric, with their graphs."""

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
for epoch in range(6):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        output = model(a)
        loss = nn.functional.cross_entropy(output, b)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        outputs.append(output)
watch.report()
dist.destroy_process_group()
