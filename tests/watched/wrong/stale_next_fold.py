"""Cross-validation: each fold gets a new model, and keeps the optimizer of the first."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

FINDS = ("stale-optimizer",)
MAY = ("forgotten-parameters",)


def new_model():
    return nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1)))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 5)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for fold in range(2):
    model = new_model()
    part = Subset(dataset, [i for i in range(96) if i % 2 != fold])
    sampler = DistributedSampler(part)
    loader = DataLoader(part, 8, sampler=sampler)
    watch = Watch(model, optimizer)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
    watch.report()
dist.destroy_process_group()
