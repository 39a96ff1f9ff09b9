"""Started by torchrun, without init_process_group: two trainings, each alone on all the data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

FINDS = ("no-group",)

torch.manual_seed(0)
x = torch.randn(96, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for _ in range(2):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
