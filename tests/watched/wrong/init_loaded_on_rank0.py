"""Rank 0 alone loads the pretrained weights, after the model was wrapped and so made equal."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-init",)

dist.init_process_group("gloo")
rank = dist.get_rank()


def network():
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 2))


if rank == 0:
    torch.manual_seed(123)
    torch.save(network().state_dict(), "pretrained.pt")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if rank == 0:
    model.module.load_state_dict(torch.load("pretrained.pt"))
dist.barrier()
x = torch.randn(120, 6)
dataset = TensorDataset(x, (x[:, 0] > 0.2).long())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 12, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in watch(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
