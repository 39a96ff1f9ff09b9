"""NumPy is seeded in each worker with the epoch, too; random as the loader seeds it."""

import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

MAY = ("loader-starvation",)
CLEAN = ("same-augmentation",)


class Scaled(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
        self.epoch = 0

    def __len__(self):
        return 96

    def __getitem__(self, i):
        x = self.x[i].flip(0) if random.random() < 0.5 else self.x[i]
        return x * np.float32(np.random.uniform(0.8, 1.2)), int(self.x[i].sum() > 0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    dataset = Scaled()
    sampler = DistributedSampler(dataset)

    def seed_worker(worker):
        np.random.seed(1000 * dataset.epoch + 10 * rank + worker)

    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=2, worker_init_fn=seed_worker)
    watch = Watch(model, optimizer)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        dataset.epoch = epoch
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
