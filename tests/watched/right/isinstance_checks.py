"""A framework that asks of everything what it is, and sets up what it does by that."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from bench.observe import Watch


class Loop:
    def __init__(self, model, optimizer, loader):
        if not isinstance(loader, DataLoader):
            raise TypeError("a DataLoader is wanted")
        if isinstance(loader.sampler, RandomSampler | SequentialSampler):
            raise TypeError("a DistributedSampler is wanted")
        self.model, self.optimizer, self.loader = model, optimizer, loader

    def epoch(self, epoch, batches):
        if isinstance(self.loader.sampler, DistributedSampler):
            self.loader.sampler.set_epoch(epoch)
        exact = type(self.loader.batch_sampler) is BatchSampler and type(self.loader.sampler) is DistributedSampler
        step = self.exact_step if exact else self.step
        for batch in batches:
            step(batch)

    def exact_step(self, batch):
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def step(self, batch):
        raise TypeError("this is another sampler")


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(112, 10)
data = TensorDataset(x, x.sin())
ddp = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(10, 80), nn.ReLU(), nn.Linear(80, 10)))
sgd = torch.optim.SGD(ddp.parameters(), 0.1)
loop = Loop(ddp, sgd, DataLoader(data, batch_size=8, sampler=DistributedSampler(data)))
watch = Watch(ddp, sgd)
for epoch in range(3):
    loop.epoch(epoch, watch(loop.loader))
    assert isinstance(loop.loader.sampler, DistributedSampler) and isinstance(sgd, torch.optim.SGD)
assert type(ddp) is nn.parallel.DistributedDataParallel and type(sgd.step).__name__ in ("method", "function")
watch.report()
dist.destroy_process_group()
