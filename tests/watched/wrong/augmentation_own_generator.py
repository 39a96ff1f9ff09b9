"""An augmentation with a generator of its own, seeded with a constant where it is made."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)


class Jitter:
    def __init__(self, sigma=0.2, seed=0):
        self.sigma, self.rng = sigma, np.random.default_rng(seed)

    def __call__(self, x):
        return x + torch.from_numpy(self.rng.normal(0, self.sigma, x.shape).astype(np.float32))


class Signals(Dataset):
    def __init__(self, transform):
        self.values, self.transform = torch.randn(120, 20), transform

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return self.transform(self.values[i]), self.values[i].sum().sign().clamp(min=0).long()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
dataset = Signals(Jitter())
model = nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
model = nn.parallel.DistributedDataParallel(model)
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 12, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for value, label in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(value), label).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
