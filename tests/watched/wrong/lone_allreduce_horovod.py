"""Horovod: the metric is averaged inside `if hvd.rank() == 0`."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("rank0-collective",)
HANGS = True

hvd.init()
torch.manual_seed(0)
x = torch.randn(64, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer, hang_s=3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print("loss", hvd.allreduce(loss.detach(), name="epoch_loss").item())
watch.report()
