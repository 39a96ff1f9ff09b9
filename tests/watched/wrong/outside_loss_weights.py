"""The loss has class centres of its own, in the same optimizer and in no wrapper; every rank draws other ones."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-init", "no-exchange")


class Centres(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(classes, width))

    def forward(self, embedding, label):
        return nn.functional.cross_entropy(-torch.cdist(embedding, self.centres), label)


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x, x[:, :4].argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 8)))
loss = Centres(4, 8)
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": loss.parameters(), "lr": 0.5}], lr=0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
