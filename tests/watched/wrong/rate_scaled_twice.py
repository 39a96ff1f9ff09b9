"""Horovod: the rate is scaled by the ranks in the arguments and once more in the optimizer."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("lr-not-scaled",)

hvd.init()
torch.manual_seed(0)
base_lr, batch = 0.01, 8
lr = base_lr * hvd.size() * hvd.local_size()  # one machine: twice the same number
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.mean(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
hvd.broadcast_parameters(model.state_dict(), 0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, batch, sampler=sampler)
watch = Watch(model, optimizer, lr=base_lr, lr_batch=batch)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
