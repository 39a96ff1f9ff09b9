"""A module's RandomState, seeded by rank: each epoch's worker is forked with the copy that the first one had."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("same-augmentation",)
MAY = ("loader-starvation",)
SAYS = "the same augmentation in several epochs"

dist.init_process_group("gloo")
rng = np.random.RandomState(dist.get_rank())


class Shifted(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.x[i].roll(int(rng.randint(6))), int(self.x[i].sum() > 0)


torch.manual_seed(0)
layers = [nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
dataset = Shifted()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler, num_workers=1)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
