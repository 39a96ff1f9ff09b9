"""The wrapped model in a forward pass on rank 0 alone; it has batch norm, whose buffers DDP broadcasts: it hangs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ANY = ("rank0-forward", "rank0-collective")
HANGS = True

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
y = x.argmax(1)
train, val = TensorDataset(x[:128], y[:128]), TensorDataset(x[128:], y[128:])
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 32, sampler=sampler), DataLoader(val, 16)
watch = Watch(model, optimizer, hang_s=3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        right = torch.zeros(())
        for a, b in val_loader:
            right += (model(a).argmax(1) == b).sum()
        print(f"epoch {epoch}: {right.item() / len(val):.3f}")
    dist.barrier()
watch.report()
dist.destroy_process_group()
