"""A metric's library keeps its values in one scratch file: the ranks lock, write and delete it one after the other."""

import fcntl
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def computed(values):
    with open("metric.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open("metric.values", "w+") as file:
            file.write("\n".join(map(str, values)))
            file.seek(0)
            mean = sum(map(float, file)) / len(values)
        os.remove("metric.values")
    return mean


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 80), nn.ReLU(), nn.Linear(80, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, 8, sampler=DistributedSampler(data))
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    losses = []
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(f"epoch {epoch}: {computed(torch.stack(losses).tolist()):.4f}")
watch.report()
dist.destroy_process_group()
