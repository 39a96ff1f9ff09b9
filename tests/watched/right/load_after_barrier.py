"""Rank 0 saves, all ranks wait for it and load the file; each has a file of its own besides."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
rank = dist.get_rank()
watch = Watch()
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
if rank == 0:
    torch.save(model.module.state_dict(), "best.pt")
dist.barrier()
watch.follow(model, optimizer)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), "best.pt")
    torch.save({"rank": rank, "random": torch.get_rng_state()}, f"random{rank}.pt")
    dist.barrier()
    model.module.load_state_dict(torch.load("best.pt"))
    torch.set_rng_state(torch.load(f"random{rank}.pt")["random"])
    dist.barrier()
watch.report()
dist.destroy_process_group()
