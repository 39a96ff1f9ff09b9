"""Numbers that the host draws and reads in every step: no device has them, and none has to be waited for."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class LayerDrop(nn.Module):
    def __init__(self, inner, p):
        super().__init__()
        self.inner, self.p = inner, p

    def forward(self, x):
        if torch.rand(()) < self.p:
            return x
        return self.inner(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.argmax(1))
net = nn.Sequential(nn.Linear(6, 64), LayerDrop(nn.Linear(64, 64), 0.2), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
torch.manual_seed(20 + dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch, scales = Watch(model, optimizer), torch.linspace(0.5, 1.5, 5)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        scale = scales[torch.randint(5, (1,)).item()]
        share = torch.distributions.Beta(0.4, 0.4).sample().item()
        shift = torch.rand(1) * 0.1
        if shift > 0.05:
            a = a.flip(0)
            b = b.flip(0)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a * float(scale)), b)
        ((1 - 0.1 * share) * loss).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
