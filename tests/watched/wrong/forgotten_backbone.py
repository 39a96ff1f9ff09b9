"""The whole network shall train, and the optimizer is given the head's parameters alone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("forgotten-parameters",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.fc = nn.Linear(6, 64), nn.Linear(64, 2)

    def forward(self, x):
        return self.fc(self.backbone(x).relu())


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.module.fc.parameters(), lr=0.05, momentum=0.9)
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
