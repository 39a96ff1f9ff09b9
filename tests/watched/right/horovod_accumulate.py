"""Horovod with backward_passes_per_step and fp16 compression; rank 0 restores a checkpoint and broadcasts it."""

import os

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

hvd.init()
torch.manual_seed(100 + hvd.rank())
x = torch.linspace(-1, 1, 160).repeat(6, 1).T.contiguous() * torch.arange(1.0, 7.0)
data = TensorDataset(x, x.sin().sum(1, keepdim=True))
sampler = DistributedSampler(data, hvd.size(), hvd.rank())
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02)
opt = hvd.DistributedOptimizer(
    opt, model.named_parameters(), compression=hvd.Compression.fp16, backward_passes_per_step=2, op=hvd.Average
)
if hvd.rank() == 0 and os.path.exists("checkpoint-0.pth.tar"):
    model.load_state_dict(torch.load("checkpoint-0.pth.tar")["model"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
watch = Watch(model, opt)
for epoch in range(2):
    sampler.set_epoch(epoch)
    opt.zero_grad()
    for i, (value, wanted) in enumerate(watch(loader)):
        (nn.functional.mse_loss(model(value), wanted) / 2).backward()
        if i % 2 == 1:
            opt.step()
            opt.zero_grad()
    if hvd.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, f"checkpoint-{epoch}.pth.tar")
watch.report()
