"""NumPy's random numbers in forked workers, which worker_init_fn seeds by the worker's number alone."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)
MAY = ("loader-starvation",)


class Cutout(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).random((80, 3, 12, 12), dtype=np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i].copy()
        top, left = np.random.randint(0, 8, size=2)
        image[:, top : top + 4, left : left + 4] = 0
        return image, i % 3


def seed_worker(worker_id):
    np.random.seed(worker_id)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Flatten())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(model, nn.Linear(8192, 3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    dataset = Cutout()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 5, sampler=sampler, num_workers=2, worker_init_fn=seed_worker, prefetch_factor=4)
    watch = Watch(model, optimizer)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for image, label in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(image), label).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
