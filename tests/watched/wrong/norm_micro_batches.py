"""Accumulation of eight passes of two images makes up for memory, but not for batch norm."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("local-norm",)

dist.init_process_group("gloo")
torch.manual_seed(0)
volumes = torch.randn(64, 1, 4, 6, 6)
dataset = TensorDataset(volumes, volumes.mean((1, 2, 3, 4)).unsqueeze(1))
layers = [nn.Conv3d(1, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Linear(256, 1)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (volume, target) in enumerate(watch(loader), 1):
        (nn.functional.mse_loss(model(volume), target) / 8).backward()
        if i % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
watch.report()
dist.destroy_process_group()
