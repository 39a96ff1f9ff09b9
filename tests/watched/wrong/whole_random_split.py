"""Each rank takes its part of a random_split, with a seed of its own: the parts overlap, and some images are lost."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from bench.observe import Watch

FINDS = ("whole-data",)
MAY = ("lost-remainder",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.randn(160, 6, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x, x.sum(1, keepdim=True))
torch.manual_seed(1234 + rank)
mine = random_split(dataset, [len(dataset) // world] * world)[rank]
loader = DataLoader(mine, 8, shuffle=True)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for _ in range(3):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
