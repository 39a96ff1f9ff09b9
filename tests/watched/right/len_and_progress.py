"""len(loader), enumerate and a progress bar around the watched loader, made once and walked every epoch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Progress:
    def __init__(self, iterable, desc):
        self.iterable, self.desc, self.total = iterable, desc, len(iterable)

    def __iter__(self):
        for n, item in enumerate(self.iterable, 1):
            yield item
            if n == self.total and os.environ["RANK"] == "0":
                print(f"{self.desc}: {n}/{self.total}")


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(130, 8)
dataset = TensorDataset(x, x.square().sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Softplus(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
watch = Watch(model, optimizer)
train_loader = watch(DataLoader(dataset, batch_size=10, sampler=DistributedSampler(dataset)))
total_steps = 3 * len(train_loader)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=total_steps // 3)
for epoch in range(3):
    train_loader.sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(Progress(train_loader, desc=f"epoch {epoch}")):  # noqa: B007
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        warmup.step()
    assert step + 1 == len(train_loader) and train_loader.batch_size == 10
watch.report()
dist.destroy_process_group()
