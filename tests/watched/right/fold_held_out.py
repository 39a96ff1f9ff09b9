"""Cross-validation by samplers: the held out fifth is in the data set, and is never drawn for training."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from bench.observe import Watch

ASKS = ("lost-remainder",)


class FoldSampler(Sampler):
    def __init__(self, indices, rank, world):
        self.indices, self.rank, self.world, self.epoch = indices, rank, world, 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.indices), generator=g)
        return iter(self.indices[order][self.rank :: self.world].tolist())

    def __len__(self):
        return len(self.indices) // self.world


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(150, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
held_out = torch.arange(150) % 5 == 0
sampler = FoldSampler(torch.arange(150)[~held_out], dist.get_rank(), dist.get_world_size())
loader = DataLoader(dataset, 10, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.epoch = epoch
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
