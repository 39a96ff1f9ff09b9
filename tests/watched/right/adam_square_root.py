"""AdamW with the square-root rule for a global batch four times as large as the recipe's."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

RECIPE = {"lr": 1e-3, "batch": 8}

dist.init_process_group("gloo")
torch.manual_seed(99)
g = torch.randn(128, 24)
data = TensorDataset(g, g.roll(1, 1))
batch = 16
global_batch = batch * dist.get_world_size()
lr = RECIPE["lr"] * math.sqrt(global_batch / RECIPE["batch"])
autoencoder = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 24))
autoencoder = nn.parallel.DistributedDataParallel(autoencoder)
optimizer = torch.optim.AdamW(autoencoder.parameters(), lr=lr, weight_decay=0.05)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=batch, sampler=sampler)
watch = Watch(autoencoder, optimizer, lr=RECIPE["lr"], lr_batch=RECIPE["batch"])
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(autoencoder(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
