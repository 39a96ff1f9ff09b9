"""Batch norm's statistics are each rank's own, every rank evaluates its share with its own, and rank 0's are saved."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

ASKS = ("unsynced-buffers",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6) * torch.linspace(1, 3, 160)[:, None]
data = TensorDataset(x, (x.sum(1) > 0).long())
train, val = Subset(data, range(128)), Subset(data, range(128 + rank, 160, world))
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 16, sampler=sampler), DataLoader(val, 16)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum() for a, b in val_loader)
    dist.all_reduce(right)
    if rank == 0:
        torch.save(net.state_dict(), "last.pt")
        print(f"epoch {epoch}: {right.item() / 32:.4f}")
watch.report()
dist.destroy_process_group()
