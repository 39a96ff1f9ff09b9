"""running_loss += loss.item() in every step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("host-sync",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    running_loss = 0.0
    for inputs, target in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    print(f"rank {dist.get_rank()} epoch {epoch} loss {running_loss / len(loader):.3f}")
watch.report()
dist.destroy_process_group()
