"""After every epoch rank 0 saves the weights, and all ranks wait for the file and load it."""

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
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
if rank == 0:
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
dist.barrier()
watch.follow(model, optimizer)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    if rank == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
    dist.barrier()
    net.load_state_dict(torch.load("best.pt")["model"])
    dist.barrier()
watch.report()
dist.destroy_process_group()
