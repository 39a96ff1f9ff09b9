"""Horovod, BatchNorm1d in a projection head, four examples per rank in a dict."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

FINDS = ("local-norm",)


class Pairs(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        base = torch.arange(10.0) * (i + 1) / 10
        return {"anchor": base.sin(), "positive": (base + 0.1).sin()}


hvd.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
pairs = Pairs()
sampler = DistributedSampler(pairs, hvd.size(), hvd.rank())
loader = DataLoader(pairs, batch_size=4, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in watch(loader):
        optimizer.zero_grad()
        one, two = model(batch["anchor"]), model(batch["positive"])
        (1 - nn.functional.cosine_similarity(one, two)).mean().backward()
        optimizer.step()
watch.report()
