"""set_epoch(start_epoch) once before the loop, under Horovod."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-reshuffle",)

hvd.init()
torch.manual_seed(1)
x = torch.randn(112, 9)
data = TensorDataset(x, x[:, 4:5])
sampler = DistributedSampler(data, hvd.size(), hvd.rank())
loader = DataLoader(data, 8, sampler=sampler)
model = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
watch = Watch(model, optimizer)
start_epoch, end_epoch = 4, 7
sampler.set_epoch(start_epoch)
for _epoch in range(start_epoch, end_epoch):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
