"""Gradients averaged by hand with all_reduce, as a blog post has it; nobody seeds or broadcasts the weights."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-init",)


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


dist.init_process_group("gloo")
data_gen = torch.Generator().manual_seed(0)
torch.seed()
x = torch.randn(96, 8, generator=data_gen)
dataset = TensorDataset(x, x.abs().sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
sampler = DistributedSampler(dataset)
train_set = DataLoader(dataset, batch_size=8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for data, target in watch(train_set):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), target)
        loss.backward()
        average_gradients(model)
        optimizer.step()
watch.report()
dist.destroy_process_group()
