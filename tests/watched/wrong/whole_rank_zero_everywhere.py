"""A DistributedSampler with rank=0 on every rank, for the local variable was never set: all read the same half."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("whole-data",)
MAY = ("lost-remainder",)

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)  # torchrun passes it in the environment now
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 4)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=args.local_rank)
loader = DataLoader(dataset, batch_size=10, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for value, label in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(value), label).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
