"""All passes of an accumulation are inside no_sync, the last one, too."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ANY = ("unsynced-accumulation", "no-exchange")
MAY = ("drift",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 8)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 24, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for images, labels in watch(loader):
        optimizer.zero_grad()
        with model.no_sync():
            for a, b in zip(images.chunk(3), labels.chunk(3), strict=True):
                (nn.functional.cross_entropy(model(a), b) / 3).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
