"""set_epoch through the loader's batch sampler, as libraries do that are handed a loader alone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def set_epoch(loader, epoch):
    """Of whatever has it, as a library does."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(batch_sampler, "sampler", None), batch_sampler):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
            return


def fit(model, loader, epochs=3):
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    watch = Watch(model, optimizer)
    for epoch in range(epochs):
        seen = watch(loader)
        set_epoch(seen, epoch)
        for features, label in seen:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), label).backward()
            optimizer.step()
    return watch.report()


dist.init_process_group("gloo")
torch.manual_seed(77)
points = torch.randn(144, 6)
dataset = TensorDataset(points, (points[:, 0] > 0).long())
fit(
    nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 72), nn.ReLU(), nn.Linear(72, 2))),
    DataLoader(dataset, batch_size=9, sampler=DistributedSampler(dataset)),
)
dist.destroy_process_group()
