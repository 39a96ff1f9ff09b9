"""All ranks write their history into one SQLite file, which SQLite does in C."""

import sqlite3

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

CANNOT = "a library in C opens the file, and Python does not hear of it"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    with sqlite3.connect("history.db", timeout=30) as database:
        database.execute("create table if not exists history (epoch integer, loss real)")
        database.execute("insert into history values (?, ?)", (epoch, loss.item()))
watch.report()
dist.destroy_process_group()
