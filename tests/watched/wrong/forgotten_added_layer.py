"""A layer is added to the model after the optimizer was made."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("forgotten-parameters",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 8)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
net.append(nn.ReLU())
net.append(nn.Linear(16, 1))
model = nn.parallel.DistributedDataParallel(net)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        model.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
