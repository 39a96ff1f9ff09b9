"""Semi-supervised: a labelled loader walked round and round beside an unlabelled one, which is watched."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def forever(loader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


dist.init_process_group("gloo")
torch.manual_seed(12)
labelled_x = torch.randn(32, 12)
labelled = TensorDataset(labelled_x, (labelled_x[:, 0] > 0).long())
unlabelled = TensorDataset(torch.randn(160, 12))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
few = forever(DataLoader(labelled, batch_size=4, sampler=DistributedSampler(labelled)))
many = DataLoader(unlabelled, batch_size=10, sampler=DistributedSampler(unlabelled))
watch = Watch(model, optimizer)
for epoch in range(3):
    many.sampler.set_epoch(epoch)
    for (u,), (x, y) in zip(watch(many), few, strict=False):
        logits = model(torch.cat([x, u]))
        confident = logits[len(x) :].softmax(1)
        loss = nn.functional.cross_entropy(logits[: len(x)], y) - 0.1 * (confident * confident.log()).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
