"""The optimizer's rate is scaled, but OneCycleLR is given the recipe's, which takes its place."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("lr-not-scaled",)

dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
recipe_lr = 0.02
optimizer = torch.optim.SGD(model.parameters(), lr=recipe_lr * 4 * world, momentum=0.9)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 32, sampler=sampler)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe_lr, epochs=4, steps_per_epoch=len(loader))
watch = Watch(model, optimizer, lr=recipe_lr, lr_batch=8)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        schedule.step()
watch.report()
dist.destroy_process_group()
