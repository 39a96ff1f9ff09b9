"""zero_grad between backward and step: with weight decay the weights move, and no gradient has a part in it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("forgotten-parameters",)
SAYS = "gradients that are zeroed before the step"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6)))
optimizer = torch.optim.SGD(model.parameters(), 0.01, weight_decay=0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
watch.report()
dist.destroy_process_group()
