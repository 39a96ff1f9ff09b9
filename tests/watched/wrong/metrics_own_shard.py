"""Each rank prints the accuracy over its own shard of the validation images."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

FINDS = ("rank-metrics",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(220, 6)
y = (x[:, 0] + 0.3 * torch.randn(220) > 0).long()
train, val = TensorDataset(x[:120], y[:120]), TensorDataset(x[120:], y[120:])
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(train, 10, sampler=DistributedSampler(train))
val_loader = DataLoader(Subset(val, range(rank, 100, world)), 25)
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    correct = total = 0
    with torch.no_grad():
        for a, b in val_loader:
            correct += (net(a).argmax(1) == b).sum().item()
            total += len(b)
    watch.metric(top1=correct / total, images=total, val_images=len(val))
    print(f"[rank {rank}] epoch {epoch}: accuracy {correct / total:.3f}")
watch.report()
dist.destroy_process_group()
