"""Every rank evaluates the wrapped model on its share, and rank 0's share has a batch more; batch norm is broadcast."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

ANY = ("rank0-forward", "rank0-collective")
HANGS = True

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(148, 6)
data = TensorDataset(x, x.argmax(1))
train, val = Subset(data, range(96)), Subset(data, range(96 + rank, 148, 2))
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 16, sampler=sampler), DataLoader(val, 13 if rank else 12)
watch = Watch(model, optimizer, hang_s=3)
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
watch.report()
dist.destroy_process_group()
