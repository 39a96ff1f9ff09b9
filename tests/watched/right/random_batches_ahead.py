"""One batch is fetched ahead, the transforms draw from a seed of the rank, and so does dropout."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class Jittered(Dataset):
    def __init__(self):
        self.x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 128

    def __getitem__(self, i):
        return self.x[i] + 0.01 * torch.randn(6), self.x[i].argmax()


def one_ahead(batches):
    batches = iter(batches)
    last = next(batches)
    for batch in batches:
        yield last, False
        last = batch
    yield last, True


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
dataset = Jittered()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
torch.manual_seed(100 + dist.get_rank())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (a, b), last in one_ahead(watch(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        if last:
            print(f"epoch {epoch} has ended")
watch.report()
dist.destroy_process_group()
