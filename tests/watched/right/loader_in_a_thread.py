"""A thread reads the watched loader ahead into a queue, from which the training takes its batches."""

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

MAY = ("loader-starvation",)


def ahead(batches, size=2):
    waiting = queue.Queue(size)

    def read():
        for batch in batches:
            waiting.put(batch)
        waiting.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while (batch := waiting.get()) is not None:
        yield batch
    reader.join()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 1)))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in ahead(watch(loader)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
