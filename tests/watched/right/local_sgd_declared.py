"""Local SGD: ranks train alone and average their weights every few steps, which the script declares."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

EXPECTS = ("drift", "no-exchange")

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(7, 72), nn.ReLU(), nn.Linear(72, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.randn(112, 7)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer, expect=("drift", "no-exchange"))


@torch.no_grad()
def average(parameters):
    flat = nn.utils.parameters_to_vector(parameters)
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), parameters)


step = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        step += 1
        if step % 7 == 0:
            average(list(model.parameters()))
watch.report()
dist.destroy_process_group()
