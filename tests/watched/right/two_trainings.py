"""Two trainings one after the other, pretraining and fine-tuning, each under a Watch of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def train(net, data, lr, epochs, seed):
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr)
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, 8, sampler=sampler)
    watch = Watch(model, optimizer)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
    return watch.report()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 8)
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
first = train(net, TensorDataset(x, x), 0.05, 2, seed=1)
for p in net[0].parameters():
    p.requires_grad = False
net[2] = nn.Linear(64, 1)
dist.broadcast(net[2].weight.data, 0)
dist.broadcast(net[2].bias.data, 0)
second = train(net, TensorDataset(x, x.sum(1, keepdim=True)), 0.01, 2, seed=2)
assert first == second == []
dist.destroy_process_group()
