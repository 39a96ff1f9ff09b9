"""Of a checkpoint only the epoch is used; the wrapped network is in a module of the script's."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("weights-not-loaded",)


class Task(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, a, b):
        return nn.functional.cross_entropy(self.network(a), b)


def made():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
if dist.get_rank() == 0:
    torch.save({"epoch": 2, "model": made().state_dict()}, "epoch2.pt")
dist.barrier()

watch = Watch()
torch.manual_seed(1)
start = torch.load("epoch2.pt", map_location="cpu")["epoch"]
task = Task(nn.parallel.DistributedDataParallel(made()))
optimizer = torch.optim.SGD(task.parameters(), 0.05)
watch.follow(task, optimizer)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
for epoch in range(start, 5):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        task(a, b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
