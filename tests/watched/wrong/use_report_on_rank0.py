"""report is called on rank 0 alone, as if it were a print: it must say so itself, and not hang."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

SAYS = "every rank must call report"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(48, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer, hang_s=3)
for a, b in watch(loader):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
if dist.get_rank() == 0:
    watch.report()
