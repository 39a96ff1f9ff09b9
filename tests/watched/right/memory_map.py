"""Data in a memory map that every rank opens read-only; numpy.load and open as well, each rank's log its own."""

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class MemoryMapped(Dataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.extra = np.load("weights.npy", mmap_mode="r")

    def __len__(self):
        return len(self.tokens) // 8 - 1

    def __getitem__(self, i):
        chunk = torch.from_numpy(self.tokens[i * 8 : i * 8 + 9].astype(np.int64))
        return chunk[:-1], chunk[1:], float(self.extra[i % len(self.extra)])


rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
if rank == 0:
    np.random.default_rng(0).integers(0, 60, 8 * 97, dtype=np.uint16).tofile("train.bin")
    np.save("weights.npy", np.linspace(0.5, 1.5, 10))
dist.barrier()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(60, 64), nn.Linear(64, 60)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
watch = Watch(model, optimizer)
dataset = MemoryMapped("train.bin")
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
with open(f"log.{rank}.txt", "w") as log:
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y, weight in watch(loader):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
            loss = (loss.view(len(x), -1).mean(1) * weight).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item(), file=log)
watch.report()
dist.destroy_process_group()
