"""A DistributedSampler, and no set_epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

FINDS = ("no-reshuffle",)


def train_one_epoch(model, loader, optimizer, criterion):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(140, 7)
dataset = TensorDataset(x, x.argmax(1))
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 7)))
sgd = torch.optim.SGD(net.parameters(), 0.05)
loader = DataLoader(dataset, batch_size=10, sampler=DistributedSampler(dataset, shuffle=True))
watch = Watch(net, sgd)
for _ in range(3):
    train_one_epoch(net, watch(loader), sgd, nn.CrossEntropyLoss())
watch.report()
dist.destroy_process_group()
