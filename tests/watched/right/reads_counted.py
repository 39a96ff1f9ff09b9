"""A data set that counts how often it is read: before the first step, and in all."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class Counting(Dataset):
    reads = lengths = 0

    def __len__(self):
        Counting.lengths += 1
        return 96

    def __getitem__(self, i):
        Counting.reads += 1
        x = torch.full((6,), i / 96)
        return x.sin(), x[:1]


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Counting()
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        if step == 0:
            print("rank", dist.get_rank(), "reads before the first step of epoch", epoch, Counting.reads)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
print("reads in all", Counting.reads)
watch.report()
dist.destroy_process_group()
