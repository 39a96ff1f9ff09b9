"""Repeated augmentation as in DeiT: every example three times in a global epoch, on neighbouring ranks."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from bench.observe import Watch

ASKS = ("whole-data",)
MAY = ("lost-remainder",)


class RASampler(Sampler):
    def __init__(self, count, rank, world, repetitions=3):
        self.count, self.rank, self.world, self.repetitions, self.epoch = count, rank, world, repetitions, 0
        self.total = math.ceil(count * repetitions / world) * world

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.count, generator=g).repeat_interleave(self.repetitions).tolist()
        order += order[: self.total - len(order)]
        return iter(order[self.rank : self.total : self.world][: len(self)])

    def __len__(self):
        return self.count // self.world


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(120, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return self.x[i] + 0.05 * torch.randn(16), self.x[i].argmax()


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 16))
model = nn.parallel.DistributedDataParallel(model)
torch.manual_seed(50 + rank)
noisy = Noisy()
sampler = RASampler(len(noisy), rank, world)
loader = DataLoader(noisy, 10, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
