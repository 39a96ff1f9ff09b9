"""A loader made anew in every epoch, its generator seeded with the same number."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from bench.observe import Watch

FINDS = ("no-reshuffle",)

SEED = 3407
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(SEED)
x = torch.randn(120, 6)
dataset = TensorDataset(x, x[:, :2].prod(1, keepdim=True))
mine = Subset(dataset, range(rank, len(dataset), world))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
watch = Watch(model, optimizer)
for _ in range(3):
    loader = DataLoader(mine, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(SEED))
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
