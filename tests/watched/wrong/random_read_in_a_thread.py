"""A thread reads batches ahead into a queue; one seed for all ranks, and each adds the same noise to its batch."""

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("same-random",)
MAY = ("loader-starvation",)


def background(batches, size=4):
    waiting = queue.Queue(size)

    def read():
        for batch in batches:
            waiting.put(batch)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (batch := waiting.get()) is not None:
        yield batch


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6)))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in background(watch(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a + 0.1 * torch.randn_like(a)), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
