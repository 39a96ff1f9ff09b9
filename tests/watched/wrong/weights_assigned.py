"""Pretrained weights: ``model.state_dict = torch.load(…)``, an assignment in the place of load_state_dict."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("weights-not-loaded",)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(96, 5)
dataset = TensorDataset(x, (x[:, 0] > 0).long())
if rank == 0:
    torch.save(nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 2)).state_dict(), "pretrained.pt")
dist.barrier()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 2))
model.state_dict = torch.load("pretrained.pt")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
