"""Weights are averaged at the end of an epoch, and a rank with more data takes more steps in it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

ASKS = ("uneven-steps",)
EXPECTS = ("no-exchange",)
MAY = ("drift",)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
torch.manual_seed(1 + rank)
x = torch.randn(64 + 32 * rank, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
watch = Watch(model, optimizer, expect=["drift", "no-exchange"])
for _ in range(2):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p)
            p.div_(dist.get_world_size())
watch.report()
dist.destroy_process_group()
