"""torch.compile around DistributedDataParallel, as its notes say, with a number that is read inside of the graph."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, a):
        if (a > 50).any():
            a = a.clamp(max=50)
        return self.layers(a)


dist.init_process_group("gloo")
torch.manual_seed(3)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.mean(1, keepdim=True))
model = torch.compile(nn.parallel.DistributedDataParallel(Net()), backend="eager")
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
