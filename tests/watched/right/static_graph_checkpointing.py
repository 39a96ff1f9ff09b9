"""static_graph=True with activation checkpointing, whose second forward runs inside the backward pass."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + checkpoint(self.net, x, use_reentrant=False)


dist.init_process_group("gloo")
torch.manual_seed(3)
x = torch.randn(96, 32)
model = nn.parallel.DistributedDataParallel(nn.Sequential(Block(32), Block(32), nn.Linear(32, 4)), static_graph=True)
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(TensorDataset(x, x[:, :4].argmin(1)))
loader = DataLoader(sampler.dataset, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for value, label in watch(loader):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(value), label).backward()
        optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "with-prefix.pt")
watch.report()
dist.destroy_process_group()
