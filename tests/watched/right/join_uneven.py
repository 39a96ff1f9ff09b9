"""Uneven inputs under Join: a rank with less data shadows the others' collectives."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

ASKS = ("uneven-steps",)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
count = 80 + 32 * rank  # what a rank has been given, on its own disk
x = torch.randn(count, 6)
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=8, shuffle=True)
model = DDP(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
watch = Watch(model, optimizer)
for _ in range(2):
    with Join([model]):
        for inputs, target in watch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), target).backward()
            optimizer.step()
watch.report()
dist.destroy_process_group()
