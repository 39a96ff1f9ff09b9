"""Persistent workers that prefetch, an augmentation from torch's generator, which workers seed by rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.transforms import v2

from bench.observe import Watch

MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too


class Pictures(Dataset):
    def __init__(self, transform):
        self.data = torch.rand(96, 3, 10, 10, generator=torch.Generator().manual_seed(0))
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.transform(self.data[i]), i % 5


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5)
    )
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    dataset = Pictures(v2.Compose([v2.RandomCrop(8), v2.RandomHorizontalFlip()]))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 12, sampler=sampler, num_workers=2, persistent_workers=True, prefetch_factor=4)
    watch = Watch(model, optimizer)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for picture, label in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(picture), label).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
