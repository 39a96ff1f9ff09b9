"""The whole loop is under no_sync, which was meant for the passes of an accumulation."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ANY = ("no-exchange", "unsynced-accumulation")
MAY = ("drift",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 5)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
with model.no_sync():
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
watch.report()
dist.destroy_process_group()
