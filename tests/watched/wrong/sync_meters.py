"""Meters of the ImageNet example under Horovod: accuracy and loss as floats after every step."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("host-sync",)


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n


hvd.init()
torch.manual_seed(0)
x = torch.randn(160, 8)
dataset = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.02), model.named_parameters())
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 10, sampler=sampler)
watch, losses, top1 = Watch(model, optimizer), AverageMeter(), AverageMeter()
for epoch in range(3):
    sampler.set_epoch(epoch)
    for images, target in watch(loader):
        output = model(images)
        loss = nn.functional.cross_entropy(output, target)
        losses.update(float(loss), len(images))
        top1.update(float((output.argmax(1) == target).float().mean()), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
