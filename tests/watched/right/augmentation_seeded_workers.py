"""Workers whose NumPy and Python generators are seeded from torch's seed, which the loader gives them by rank."""

import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too
CLEAN = ("same-augmentation",)


class Crops(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).random((96, 3, 12, 12), dtype=np.float32)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        top, left = np.random.randint(0, 3), random.randint(0, 2)
        return self.images[i, :, top : top + 10, left : left + 10].copy(), i % 4


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 4)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    dataset = Crops()
    sampler = DistributedSampler(dataset)
    g = torch.Generator().manual_seed(100 + dist.get_rank())
    loader = DataLoader(
        dataset, 8, sampler=sampler, num_workers=1, worker_init_fn=seed_worker, generator=g, persistent_workers=True
    )
    watch = Watch(model, optimizer)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
