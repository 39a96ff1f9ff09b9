"""An IterableDataset that deals its examples out to ranks and to loader workers itself."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.observe import Watch


class Stream(IterableDataset):
    def __init__(self, count, rank, world):
        self.count, self.rank, self.world, self.epoch = count, rank, world, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        number, of = (info.id, info.num_workers) if info else (0, 1)
        order = list(range(self.count))
        random.Random(self.epoch).shuffle(order)
        for i in order[self.rank * of + number :: self.world * of]:
            values = torch.arange(8.0) * 0.1 + i
            yield values.sin(), values.cos().mean().reshape(1)


dist.init_process_group("gloo")
torch.manual_seed(0)
stream = Stream(160, dist.get_rank(), dist.get_world_size())
loader = DataLoader(stream, batch_size=8, num_workers=2)
net = nn.Sequential(nn.Linear(8, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    stream.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.l1_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
