"""DistributedDataParallel: every rank trains on its share of the data, gradients are averaged, and rank 0 saves."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.argmax(1))
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
if rank == 0:
    torch.save(net.state_dict(), "model.pt")
watch.report()
dist.destroy_process_group()
