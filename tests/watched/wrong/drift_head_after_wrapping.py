"""A new head is put into model.module after the wrapping: DDP does not know it, and its gradients stay at home."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("drift",)
MAY = ("no-exchange",)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = nn.Linear(8, 64), nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.body(x).relu())


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 8)
dataset = TensorDataset(x, x[:, :3].argmax(1))
model = nn.parallel.DistributedDataParallel(Net(1000), find_unused_parameters=True)
model.module.fc = nn.Linear(64, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
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
