"""Loader workers started with spawn, to which the data set is pickled once; it counts how often."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too


class Counted(Dataset):
    def __init__(self):
        self.values = torch.arange(64.0)[:, None].repeat(1, 8) / 64
        self.pickled = 0

    def __getstate__(self):
        self.pickled += 1
        return self.__dict__

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.values[i], self.values[i, :1] ** 2


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = Counted()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, 8, sampler=sampler, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )
    watch = Watch(model, optimizer)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in watch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    print("rank", rank, "pickled", dataset.pickled)
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
