"""A classifier cut over the ranks: each has the weights of its own classes, and the embeddings of all are gathered."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather, all_reduce
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("unsynced-init", "no-exchange")


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own):
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 8)))
part = nn.Parameter(0.1 * torch.randn(6 // world, 8))  # of the classes from rank * (6 // world) on
optimizer = torch.optim.SGD([*model.parameters(), part], lr=0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        logits = Gather.apply(model(a)) @ part.T
        label = torch.cat(all_gather(b)) - rank * (6 // world)
        mine = (label >= 0) & (label < 6 // world)
        summed = all_reduce(logits.exp().sum(1))
        own = torch.where(mine, logits.gather(1, label.clamp(0, 6 // world - 1)[:, None])[:, 0], 0.0)
        (summed.log() / world - own).mean().backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
