"""Rank 0 alone evaluates the wrapped model, which has no buffers: its forward sends nothing, and nobody waits."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(136, 6)
y = x.sum(1, keepdim=True)
train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 8, sampler=sampler), DataLoader(val, 8)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            errors = [nn.functional.l1_loss(model(a), b) for a, b in val_loader]
        print(f"epoch {epoch}: {torch.stack(errors).mean():.4f}")
    dist.barrier()
watch.report()
dist.destroy_process_group()
