"""A loader worker of one rank reads from storage that does not answer; the other rank waits in its backward pass."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("loader-stuck",)
HANGS = True


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if dist.is_initialized() and dist.get_rank() == 1 and i == 61:
            time.sleep(600)  # storage that does not answer
        return self.x[i], int(self.x[i].sum() > 0)


dist.init_process_group("gloo")
torch.manual_seed(0)
rows = Rows()
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = DataLoader(rows, 8, sampler=DistributedSampler(rows, shuffle=False), num_workers=1)
watch = Watch(model, optimizer, hang_s=3)
for a, b in watch(loader):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()
watch.report()
dist.destroy_process_group()
