"""Two optimizers of two parts of a model, both of which step, and one of which is told to zero its gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-zero-grad",)
SAYS = "in 2 gradients"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
dataset = TensorDataset(x, x.argmax(1))
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(net)
first, second = torch.optim.SGD(net[0].parameters(), 0.01), torch.optim.AdamW(net[2].parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, [first, second])
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        first.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(a), b).backward()
        first.step()
        second.step()
watch.report()
dist.destroy_process_group()
