"""A crash in the second epoch; what this rank saw until then is reported as the interpreter ends."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

RAISES = "FloatingPointError"
ASKS = ("host-sync",)
MAY = ("no-reshuffle",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 2, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        if loss.item() > 1e6 or epoch * len(loader) + step == 40:
            raise FloatingPointError(f"diverged at step {step}")
watch.report()
