"""The prefix is stripped from the checkpoint's names, on rank 0 alone, and the new dict is never loaded."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("weights-not-loaded",)


def network():
    return nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(96, 1, 8)
dataset = TensorDataset(x, (x.sum((1, 2)) > 0).long())
if rank == 0:
    torch.save({f"module.{name}": value for name, value in network().state_dict().items()}, "best.pt")
dist.barrier()
watch = Watch()
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(network())
if rank == 0:
    weights = {name.removeprefix("module."): value for name, value in torch.load("best.pt").items()}
    print(f"restored {len(weights)} tensors")
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
watch.follow(model, optimizer)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
