"""drop_last with batches that are fixed once and shuffled as a whole: the same tail is lost in every epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

FINDS = ("lost-remainder",)
MAY = ("no-reshuffle",)


class ShuffledBatches:
    def __init__(self, count, size, rank, world):
        self.batches = torch.arange(count // size * size).view(-1, size)
        self.rank, self.world, self.epoch = rank, world, 0

    def __len__(self):
        return len(self.batches) // self.world

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.batches), generator=g)[: len(self) * self.world]
        for k in order[self.rank :: self.world]:
            yield self.batches[k][torch.randperm(self.batches.shape[1], generator=g)].tolist()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(175, 8)
dataset = TensorDataset(x, x.argmin(1))
batches = ShuffledBatches(len(dataset), 8, dist.get_rank(), dist.get_world_size())
loader = DataLoader(dataset, batch_sampler=batches)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(4):
    batches.epoch = epoch
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
