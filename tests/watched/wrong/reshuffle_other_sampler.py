"""set_epoch is called, on a second sampler that the loader does not have."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-reshuffle",)


def get_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.rand(128, 5)
train_dataset = TensorDataset(x, x.std(1, keepdim=True))
train_sampler = DistributedSampler(train_dataset)
train_loader = get_loader(train_dataset, 8)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.Sigmoid(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
watch = Watch(model, optimizer)
for epoch in range(2):
    train_sampler.set_epoch(epoch)
    for a, b in watch(train_loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
