"""The epoch is assigned to the loader's sampler, not set by a method; what it is an instance of is asked, too."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
t = torch.randn(128, 7)
loader = DataLoader(TensorDataset(t, t.sum(1, keepdim=True)), batch_size=8, sampler=DistributedSampler(range(128)))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(7, 64), nn.ELU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
watch = Watch(model, optimizer)
for epoch in range(3):
    assert type(loader.batch_sampler) is BatchSampler
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.epoch = epoch
    loss_sum = torch.zeros(())
    for x, y in watch(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach()
    print(dist.get_rank(), epoch, loss_sum.item() / len(loader))
watch.report()
dist.destroy_process_group()
