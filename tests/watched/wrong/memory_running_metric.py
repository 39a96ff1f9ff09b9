"""A second loss is computed for the log, outside of no_grad, and summed: the sum holds the graphs of all steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("memory-growth",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(1024, 32)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(32, 2048), nn.Tanh(), nn.Linear(2048, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 32, sampler=sampler)
watch = Watch(model, optimizer)
running = 0.0
for epoch in range(6):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        running += nn.functional.l1_loss(net(a), b)
print(f"{float(running):.3f}")
watch.report()
dist.destroy_process_group()
