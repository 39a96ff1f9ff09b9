"""Encoder and head with an optimizer each: the encoder is wrapped, the head is not, and starts from the same seed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-exchange",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.argmax(1))
encoder = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU()))
head = nn.Linear(64, 6)
optimizers = torch.optim.SGD(encoder.parameters(), 0.02), torch.optim.Adam(head.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(encoder, optimizers)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(head(encoder(a)), b).backward()
        for optimizer in optimizers:
            optimizer.step()
watch.report()
dist.destroy_process_group()
