"""Stochastic weight averaging: AveragedModel and SWALR in the last epochs, update_bn over the plain loader."""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(21)
x = torch.randn(192, 9)
dataset = TensorDataset(x, x[:, :1] * x[:, 1:2])
model = nn.Sequential(nn.Linear(9, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
swa_model, swa_start = AveragedModel(model), 2
swa_scheduler = SWALR(optimizer, swa_lr=0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
watch = Watch(ddp, optimizer)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for value, wanted in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(value), wanted).backward()
        optimizer.step()
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
update_bn(loader, swa_model)
if dist.get_rank() == 0:
    torch.save(swa_model.module.state_dict(), "swa.pt")
watch.report()
dist.destroy_process_group()
