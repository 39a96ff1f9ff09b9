"""no_sync by step % 4 and the optimizer by (step + 1) % 4: the pass before the step is never the synced one."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-accumulation",)
MAY = ("drift",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(256, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        with model.no_sync() if step % 4 != 0 else contextlib.nullcontext():
            (nn.functional.mse_loss(model(a), b) / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
watch.report()
dist.destroy_process_group()
