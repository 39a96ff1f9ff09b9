"""One seed on all ranks, and noise from torch's generator in the data set, loaded in the process itself."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 3, 8, 8)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        image = self.x[i]
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn_like(image), i % 4


dist.init_process_group("gloo")
torch.manual_seed(42)
dataset = Noisy()
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for image, label in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
