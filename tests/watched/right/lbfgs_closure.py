"""LBFGS with a closure: several forward and backward passes in one step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

MAY = ("host-sync",)  # inside of the optimizer, which compares numbers

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 5)
dataset = TensorDataset(x, x.sum(1, keepdim=True).sin())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1, history_size=4)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 16, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):

        def closure(a=a, b=b):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            return loss

        optimizer.step(closure)
watch.report()
dist.destroy_process_group()
