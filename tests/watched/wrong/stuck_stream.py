"""A stream of one rank yields no more batches and does not end; no DataLoader is used."""

import time

import torch
import torch.distributed as dist
from torch import nn

from bench.observe import Watch

FINDS = ("loader-stuck",)
HANGS = True


def batches(rank):
    draw = torch.Generator().manual_seed(rank)
    for number in range(8):
        while rank == 0 and number == 5:  # waits for a message that nobody sends
            time.sleep(0.1)
        rows = torch.randn(8, 5, generator=draw)
        yield rows, (rows.sum(1) > 0).long()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
watch = Watch(model, optimizer, hang_s=3)
for a, b in watch(batches(dist.get_rank())):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(a), b)
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
watch.report()
dist.destroy_process_group()
