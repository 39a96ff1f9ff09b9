"""Each rank validates its part and prints the accuracy of it; nothing is given to watch.metric, nothing is reduced."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("rank-metrics",)
MAY_ASK = ("counted-twice",)


def validate(model, batches):
    model.eval()
    hits = images = 0
    with torch.no_grad():
        for a, b in batches:
            hits, images = hits + (model(a).argmax(1) == b).sum().item(), images + len(b)
    model.train()
    return hits / images


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(160, 6)
y = (x[:, 0] > x[:, 1]).long()
train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = DataLoader(train, 16, sampler=DistributedSampler(train))
val_loader = DataLoader(val, 16, sampler=DistributedSampler(val, shuffle=False))
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    top1 = validate(model, watch(val_loader))
    if rank == 0:
        print(f"epoch {epoch}: accuracy {top1:.4f}")
watch.report()
dist.destroy_process_group()
