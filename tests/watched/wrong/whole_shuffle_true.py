"""shuffle=True where a DistributedSampler belongs, with seeds by rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

FINDS = ("whole-data",)

dist.init_process_group("gloo")
g = torch.Generator().manual_seed(0)
x = torch.randn(128, 8, generator=g)
dataset = TensorDataset(x, x.norm(dim=1))
torch.manual_seed(dist.get_rank())
loader = DataLoader(dataset, batch_size=16, shuffle=True)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
watch = Watch(model, optimizer)
for _ in range(3):
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
