"""Contrastive learning over the global batch: features of all ranks are gathered inside the forward pass."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class TwoViews(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 12, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(12), self.x[i] + 0.1 * torch.randn(12)


class GatherLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torch.manual_seed(7 + rank)
dataset = TwoViews()
sampler = DistributedSampler(dataset, drop_last=True)
loader = DataLoader(dataset, 8, sampler=sampler, drop_last=True)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for one, two in watch(loader):
        z1, z2 = F.normalize(model(torch.cat([one, two])), dim=1).chunk(2)
        every = GatherLayer.apply(z2.contiguous())
        logits = z1 @ every.T / 0.2
        loss = F.cross_entropy(logits, torch.arange(len(z1)) + rank * len(z1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
