"""A new loader for every epoch, its generator seeded by the epoch, and a share of the data cut by stride."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
x = torch.randn(160, 5)
dataset = TensorDataset(x, x.prod(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 80), nn.ReLU(), nn.Linear(80, 1)))
optimizer = torch.optim.Adamax(model.parameters())
watch = Watch(model, optimizer)


def loader_of(epoch):
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)).tolist()
    return DataLoader(Subset(dataset, order[rank::world]), batch_size=10)


for epoch in range(3):
    for a, b in watch(loader_of(epoch)):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
