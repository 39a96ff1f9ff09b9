"""Horovod: everything is broadcast, and DistributedOptimizer is made but not used."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-exchange",)
MAY = ("drift",)

hvd.init()
torch.manual_seed(0)
x = torch.randn(80, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
opt = torch.optim.SGD(model.parameters(), 0.01)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(opt, root_rank=0)
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, opt)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        opt.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        opt.step()
watch.report()
