"""The batch is halved on the rank whose device has less memory, and DDP averages ranks, not images."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from bench.observe import Watch

FINDS = ("uneven-steps",)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(144, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
share = [range(0, 96), range(96, 144)][rank]
batch = [16, 8][rank]
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
torch.manual_seed(rank)
loader = DataLoader(Subset(dataset, share), batch, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for _ in range(3):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
