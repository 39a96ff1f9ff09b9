"""A communication hook for compression that sums, where DDP's own would have divided."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("gradient-sum",)


def bf16_hook(group, bucket):
    small = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(small, group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(bucket.buffer().dtype))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 12)
dataset = TensorDataset(x, x[:, :4].argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)))
model.register_comm_hook(None, bf16_hook)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 16, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
