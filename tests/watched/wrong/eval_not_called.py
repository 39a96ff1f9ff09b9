"""``model.eval`` without parentheses: dropout goes on in the validation, of the whole set on every rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("no-eval",)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(160, 6)
y = (x[:, 0] * x[:, 1] > 0).long()
train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(model)
torch.manual_seed(rank)
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
loader = DataLoader(train, 8, sampler=DistributedSampler(train))
val_loader = DataLoader(val, 32)
watch = Watch(model, optimizer)
for epoch in range(2):
    model.train()
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    model.eval  # noqa: B018
    hits = 0
    with torch.no_grad():
        for a, b in watch(val_loader):
            hits += int((model(a).argmax(1) == b).sum())
    if rank == 0:
        print(f"epoch {epoch}: {hits / len(val):.4f}")
watch.report()
dist.destroy_process_group()
