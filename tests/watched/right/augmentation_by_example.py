"""The augmentation of an example is seeded by epoch and example: no stream, and nothing is the same twice."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class PerExample(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(1).normal(size=(96, 24)).astype(np.float32)
        self.epoch = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        rng = np.random.default_rng((self.epoch, i))
        return self.x[i] * rng.uniform(0.8, 1.2, 24).astype(np.float32), int(self.x[i].sum() > 0)


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = PerExample()
model = nn.Sequential(nn.Linear(24, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    dataset.epoch = epoch
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
