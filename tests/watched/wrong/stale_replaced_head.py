"""The head is replaced for fine-tuning after the optimizer was made: it holds the old one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("stale-optimizer",)
MAY = ("forgotten-parameters",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 10)
dataset = TensorDataset(x, x[:, :3].argmax(1))
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1000))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
net[2] = nn.Linear(64, 3)
model = nn.parallel.DistributedDataParallel(net)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        model.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
