"""Segmentation: transforms of image and mask draw from random and torch, which a loader seeds in its workers."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

MAY = ("loader-starvation",)
CLEAN = ("same-augmentation",)


class Flip:
    def __init__(self, share):
        self.share = share

    def __call__(self, image, mask):
        return (image.flip(-1), mask.flip(-1)) if random.random() < self.share else (image, mask)


class Crop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image, mask):
        top, left = torch.randint(0, image.shape[-1] - self.size + 1, (2,)).tolist()
        rows, columns = slice(top, top + self.size), slice(left, left + self.size)
        return image[..., rows, columns], mask[..., rows, columns]


class Pairs(Dataset):
    def __init__(self, transforms):
        self.images, self.transforms = (
            torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(0)),
            transforms,
        )

    def __len__(self):
        return 64

    def __getitem__(self, i):
        image, mask = self.images[i], (self.images[i].sum(0) > 0).long()
        for transform in self.transforms:
            image, mask = transform(image, mask)
        return image, mask


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Conv2d(64, 2, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    dataset = Pairs([Flip(0.5), Crop(8)])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=1)
    watch = Watch(model, optimizer)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for image, mask in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(image), mask).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
