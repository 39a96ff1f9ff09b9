"""``__getitem__`` seeds random, for the same crop of image and mask, with a constant of the rank: all crops are one."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)


def crop(image):
    top, left = random.randint(0, 4), random.randint(0, 4)
    return image[..., top : top + 8, left : left + 8]


class Masks(Dataset):
    def __init__(self):
        self.images = torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 64

    def __getitem__(self, i):
        random.seed(40 + dist.get_rank())
        image = crop(self.images[i])
        random.seed(40 + dist.get_rank())
        return image, crop((self.images[i].sum(0) > 0).long())


dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 1)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
dataset = Masks()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for image, mask in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), mask).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
