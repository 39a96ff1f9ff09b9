"""OneCycleLR stepped with every batch, its peak scaled with the global batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

EPOCHS, BATCH, RECIPE_LR, RECIPE_BATCH = 4, 10, 0.04, 10

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x.argmax(1))
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
lr = RECIPE_LR * BATCH * world / RECIPE_BATCH
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, epochs=EPOCHS, steps_per_epoch=len(loader))
watch = Watch(model, optimizer, lr=RECIPE_LR, lr_batch=RECIPE_BATCH)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        schedule.step()
watch.report()
dist.destroy_process_group()
