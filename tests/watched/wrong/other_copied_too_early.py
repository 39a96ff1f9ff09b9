"""The teacher is a copy that each rank makes before Horovod's broadcast: of random weights of its own."""

import copy

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("other-replica",)

hvd.init()
g = torch.Generator().manual_seed(0)
x = torch.randn(96, 6, generator=g)
dataset = TensorDataset(x)
torch.manual_seed(hvd.rank())
student = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 8))
teacher = copy.deepcopy(student).eval()
for p in teacher.parameters():
    p.requires_grad = False
hvd.broadcast_parameters(student.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(student.parameters(), 0.05)
optimizer = hvd.DistributedOptimizer(optimizer, student.named_parameters())
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch()
watch.follow(student, optimizer, others={"teacher": teacher})
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (a,) in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(student(a), teacher(a)).backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
watch.report()
