"""Batch norm over the two images that fit on a device."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("local-norm",)

dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.randn(40, 3, 16, 16)
dataset = TensorDataset(images, torch.arange(40) % 4)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 4),
)
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for image, label in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
