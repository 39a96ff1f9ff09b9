"""Spawned workers, one seed for all ranks, torch's generator in the data set."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

CANNOT = "spawned workers are not seen; that they start from one seed on all ranks is said"
UNSEEN = ("same-augmentation",)
MAY = ("loader-starvation",)


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((16,), i / 64) + 0.1 * torch.randn(16), torch.tensor([i / 64])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = Noisy()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, 8, sampler=sampler, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )
    watch = Watch(model, optimizer)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
