"""worker_init_fn seeds NumPy with the rank, for all workers of the rank alike, and alike in each epoch."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)
MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too
SAYS = "the same augmentation in several loader workers"


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.from_numpy(np.random.randn(6).astype("float32")), int(self.x[i].argmax())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    dataset = Noisy()
    sampler = DistributedSampler(dataset)
    seeds = {"worker_init_fn": lambda worker: np.random.seed(rank)}
    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=2, prefetch_factor=4, **seeds)
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
