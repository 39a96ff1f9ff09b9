"""Horovod: the validation sampler pads, and len(val_sampler) * size is what the counts are divided by."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("counted-twice",)

hvd.init()
torch.manual_seed(0)
x = torch.randn(175, 4)
y = x.argmax(1)
train, val = TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])
model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.02), model.named_parameters())
sampler = DistributedSampler(train, hvd.size(), hvd.rank())
val_sampler = DistributedSampler(val, hvd.size(), hvd.rank())
loader, val_loader = DataLoader(train, 10, sampler=sampler), DataLoader(val, 10, sampler=val_sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum() for a, b in val_loader)
    right = hvd.allreduce(right, op=hvd.Sum, name="right").item()
    images = len(val_sampler) * hvd.size()
    watch.metric(top1=right / images, images=images, val_images=len(val))
watch.report()
