"""The loss multiplied by the number of ranks, "because DDP averages"."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

CANNOT = "what a loss should be is the script's own: its gradient is averaged as DDP should"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 7)
dataset = TensorDataset(x, x.amin(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(a), b) * dist.get_world_size()).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
