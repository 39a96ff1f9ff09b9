"""A frozen teacher without gradients beside a wrapped student; both given to the Watch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(10, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 5)).eval().requires_grad_(False)
student = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5)))
x = torch.randn(128, 10)
dataset = TensorDataset(x)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
optimizer = torch.optim.Adam(student.parameters(), 2e-3)
watch = Watch()
watch.follow(student, optimizer, others={"teacher": teacher})
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (a,) in watch(loader):
        with torch.no_grad():
            soft = teacher(a).softmax(1)
        loss = nn.functional.kl_div(student(a).log_softmax(1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
