"""``if "stem" or "head" in name``, which is always true: everything is frozen but what is added afterwards."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

CANNOT = "a script may freeze what it likes: the condition is true for every name, and Python does not say so"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, (x[:, 0] > 0).long())
net = nn.Sequential()
net.add_module("stem", nn.Linear(6, 16))
net.add_module("act", nn.ReLU())
net.add_module("body", nn.Linear(16, 16))
for name, p in net.named_parameters():
    if "stem" or "act" in name:  # noqa: SIM222
        p.requires_grad = False
net.add_module("classes", nn.Linear(16, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
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
