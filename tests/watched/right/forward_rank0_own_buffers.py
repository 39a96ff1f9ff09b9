"""Rank 0 alone calls the wrapped model, whose batch norms DDP does not broadcast: broadcast_buffers=False."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
y = x.argmax(1)
train, val = TensorDataset(x[:128], y[:128]), TensorDataset(x[128:], y[128:])
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 32, sampler=sampler), DataLoader(val, 16)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    model.eval()  # on every rank, and one of them evaluates
    if dist.get_rank() == 0:
        with torch.no_grad():
            right = sum((model(a).argmax(1) == b).sum() for a, b in val_loader)
        print(f"epoch {epoch}: {right.item() / len(val):.3f}")
    dist.barrier()
watch.report()
dist.destroy_process_group()
