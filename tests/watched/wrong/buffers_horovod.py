"""Horovod broadcasts parameters and buffers once; a codebook that follows each rank's own examples goes apart."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("unsynced-buffers",)


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(6, 16), nn.Linear(16, 6)
        self.register_buffer("codes", torch.randn(8, 16))

    def forward(self, x):
        inner = self.down(x)
        nearest = torch.cdist(inner, self.codes).argmin(1)
        if self.training:
            for code, row in zip(nearest.tolist(), inner.detach(), strict=True):
                self.codes[code].lerp_(row, 0.1)
        return self.up(inner + (self.codes[nearest] - inner).detach())


hvd.init()
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x)
model = Quantizer()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.02), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
val_loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset, hvd.size(), hvd.rank(), shuffle=False))
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for (a,) in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), a).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = torch.stack([nn.functional.mse_loss(model(a), a) for (a,) in val_loader])
    print(f"epoch {epoch}: {hvd.allreduce(errors.mean(), name='error').item():.4f}")
watch.report()
