"""A prefetcher around the watched loader: always one batch ahead, the last one flagged by None."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class DataPrefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.input, self.target = next(self.loader)
        except StopIteration:
            self.input = self.target = None
            return
        self.input = self.input.float().sub_(128).div_(64)

    def next(self):
        input, target = self.input, self.target
        self.preload()
        return input, target


dist.init_process_group("gloo")
torch.manual_seed(1)
pixels = torch.randint(0, 256, (160, 3, 5, 5), dtype=torch.uint8)
labels = pixels.float().mean((1, 2, 3)).gt(127).long()
dataset = TensorDataset(pixels, labels)
sampler = DistributedSampler(dataset)
train_loader = DataLoader(dataset, batch_size=10, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(75, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    prefetcher = DataPrefetcher(watch(train_loader))
    input, target = prefetcher.next()
    while input is not None:
        loss = nn.functional.cross_entropy(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        input, target = prefetcher.next()
watch.report()
dist.destroy_process_group()
