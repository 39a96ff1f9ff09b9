"""A validation under no_grad, without model.eval(): batch norm takes in the validation set."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

ASKS = ("no-eval",)
MAY_ASK = ("unsynced-buffers", "local-norm")
MAY = ("local-norm",)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 6)
everything = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
train, val = Subset(everything, range(128)), Subset(everything, range(128, 192))
net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = DataLoader(train, 32, sampler=DistributedSampler(train))
val_loader = DataLoader(Subset(val, range(rank, len(val), world)), 16)
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    counts = torch.zeros(2)
    with torch.no_grad():
        for a, b in watch(val_loader):
            counts += torch.tensor([(net(a).argmax(1) == b).sum(), len(b)])
    dist.all_reduce(counts)
    if rank == 0:
        print(f"epoch {epoch}: {counts[0] / counts[1]:.4f}")
watch.report()
dist.destroy_process_group()
