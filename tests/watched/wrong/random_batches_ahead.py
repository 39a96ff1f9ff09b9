"""The batches of an accumulation are fetched first, then trained; one seed for all ranks, and dropout draws from it."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("same-random",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 6)
dataset = TensorDataset(x, x.argmax(1))
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    batches = iter(watch(loader))
    while ahead := list(itertools.islice(batches, 3)):
        for number, (a, b) in enumerate(ahead, 1):
            model.require_backward_grad_sync = number == len(ahead)
            (nn.functional.cross_entropy(model(a), b) / len(ahead)).backward()
        optimizer.step()
        optimizer.zero_grad()
watch.report()
dist.destroy_process_group()
