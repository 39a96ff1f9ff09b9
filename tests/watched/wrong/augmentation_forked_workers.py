"""torch.manual_seed(0) everywhere: the loaders' base seeds are the same, and so are those of the workers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.transforms import v2

from bench.observe import Watch

FINDS = ("same-augmentation",)
MAY = ("loader-starvation",)


class Pictures(Dataset):
    def __init__(self):
        self.data = torch.rand(96, 3, 12, 12, generator=torch.Generator().manual_seed(4))
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(10), v2.ColorJitter(0.4, 0.4)])

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.transform(self.data[i]), i % 5


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten()]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(1024, 5)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    dataset = Pictures()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 6, sampler=sampler, num_workers=2, prefetch_factor=4)
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
