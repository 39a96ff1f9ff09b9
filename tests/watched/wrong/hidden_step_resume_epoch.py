"""Horovod's ImageNet example, resumed: the epoch is broadcast, rank 0 loads, parameters and SGD's state are sent."""

import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

FINDS = ("hidden-step",)
FORMAT = "checkpoint-{epoch}.pth.tar"


def network():
    torch.manual_seed(42)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))


def sgd(model):
    return optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


hvd.init()
images = torch.randn(128, 1, 8, 8, generator=torch.Generator().manual_seed(3))
labels = images.mean(dim=(1, 2, 3)).mul(20).long().clamp(0, 3)
if hvd.rank() == 0:
    before = network()
    stepped = sgd(before)
    F.cross_entropy(before(images), labels).backward()
    stepped.step()
    torch.save({"model": before.state_dict(), "optimizer": stepped.state_dict()}, FORMAT.format(epoch=1))

resume_from_epoch = next((e for e in range(3, 0, -1) if os.path.exists(FORMAT.format(epoch=e))), 0)
resume_from_epoch = int(hvd.broadcast(torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch"))
model = network()
optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters(), op=hvd.Average)
watch = Watch(model, optimizer)
if resume_from_epoch > 0 and hvd.rank() == 0:
    checkpoint = torch.load(FORMAT.format(epoch=resume_from_epoch))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

dataset = TensorDataset(images, labels)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
for epoch in range(resume_from_epoch, 3):
    sampler.set_epoch(epoch)
    for data, target in watch(loader):
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()
watch.report()
