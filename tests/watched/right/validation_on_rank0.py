"""Validation on rank 0 alone, with the plain module, while the others wait at a barrier."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def validate(module, loader):
    module.eval()
    with torch.inference_mode():
        errors = [(module(x) - y).abs().mean().item() for x, y in loader]
    module.train()
    return sum(errors) / len(errors)


dist.init_process_group("gloo")
torch.manual_seed(40)
x = torch.randn(150, 6)
y = x[:, :2].sum(1, keepdim=True)
train, val = TensorDataset(x[:120], y[:120]), TensorDataset(x[120:], y[120:])
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 90), nn.ReLU(), nn.Linear(90, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 12, sampler=sampler), DataLoader(val, 10)
watch, best = Watch(model, optimizer), float("inf")
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        error = validate(model.module, val_loader)
        if error < best:
            best = error
            torch.save(model.module.state_dict(), "best.pt")
        print(f"{epoch}: {error:.5f}")
    dist.barrier()
watch.report()
dist.destroy_process_group()
