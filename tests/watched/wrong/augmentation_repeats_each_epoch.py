"""Each rank sets a seed of its own at the start of every epoch, so that an epoch repeats the noise of the last one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)
SAYS = "the same augmentation in several epochs"


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(6), self.x[i].argmax()


dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
dataset = Noisy()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    torch.manual_seed(7 + dist.get_rank())
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
