"""Checkpoints written by rank 0 under a temporary name, fsynced, renamed with os.replace; JSON beside them."""

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

OUT = Path("run")


def save(state, path):
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


dist.init_process_group("gloo")
main_rank = dist.get_rank() == 0
OUT.mkdir(exist_ok=True)
torch.manual_seed(0)
x = torch.randn(100, 4)
dataset = TensorDataset(x, x.sum(1, keepdim=True).tanh())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 100), nn.Tanh(), nn.Linear(100, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=10, sampler=sampler)
watch = Watch(model, optimizer)
history = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    history.append(loss.item())
    if main_rank:
        save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, OUT / "latest.pt")
        (OUT / "history.json.new").write_text(json.dumps(history))
        (OUT / "history.json.new").rename(OUT / "history.json")
    dist.barrier()
watch.report()
dist.destroy_process_group()
