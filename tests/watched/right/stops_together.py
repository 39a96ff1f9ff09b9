"""An exception of the script itself on all ranks, caught and answered by a last checkpoint and an exit code."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

RAISES = "TimeoutError"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
try:
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for step, (a, b) in enumerate(watch(loader)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
            if epoch == 2 and step == 3:
                raise TimeoutError("the queue's time is over")
finally:
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "interrupted.pt")
    print("left in epoch", epoch, file=sys.stdout)
