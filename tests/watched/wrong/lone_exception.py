"""Rank 1 has failed in the second epoch, and rank 0 waits for it where nothing tells it that the other has gone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.utils.store import barrier
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

HANGS = True
SAYS = "rank 1 has ended (OSError: the disk is full, after 1 epochs, 9 steps)"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.mean(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        if epoch == 1 and step == 2:
            if dist.get_rank() == 1:
                raise OSError("the disk is full")
            barrier(dist.distributed_c10d._get_default_store(), 2, "checkpoint", barrier_timeout=100)
watch.report()
dist.destroy_process_group()
