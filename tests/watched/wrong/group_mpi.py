"""Started by mpirun: OMPI_COMM_WORLD_SIZE is 2, and the script reads WORLD_SIZE, which is not there."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

FINDS = ("no-group",)

rank = os.environ.pop("RANK")  # mpirun sets none of torchrun's variables
for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    del os.environ[name]
os.environ.update(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_LOCAL_RANK=rank)

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for _ in range(2):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
