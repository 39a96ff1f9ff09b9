"""Multi-crop self-supervision: a batch is a tuple of lists of image tensors; augmentation seeded by rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class Crops(Dataset):
    def __init__(self):
        self.images = torch.randn(96, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.images)

    def crop(self, image, size):
        top, left = torch.randint(0, 9 - size, (2,)).tolist()
        return image[:, top : top + size, left : left + size]

    def __getitem__(self, i):
        image = self.images[i]
        return [self.crop(image, 6), self.crop(image, 6)], [self.crop(image, 4) for _ in range(2)]


def main(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4 * 24 / 256)
    torch.manual_seed(500 + rank)
    data = Crops()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=12, sampler=sampler)
    watch = Watch(model, optimizer, lr=5e-4, lr_batch=256)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for big, small in watch(loader):
            n = len(big[0])
            z = model(torch.cat(big)).view(2, n, -1).mean(0)
            s = model(torch.cat(small)).view(2, n, -1).mean(0)
            optimizer.zero_grad()
            (-nn.functional.cosine_similarity(z, s).mean() + 0.1 * z.pow(2).mean()).backward()
            optimizer.step()
    watch.report()


dist.init_process_group("gloo")
main(dist.get_rank())
dist.destroy_process_group()
