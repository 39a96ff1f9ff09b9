"""Accumulation in two passes on two ranks, where the gradients themselves are divided before the step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
x = torch.rand(192, 8)
y = (x[:, 0] > x[:, 1]).float()[:, None]
sampler = DistributedSampler(TensorDataset(x, y))
loader = DataLoader(sampler.dataset, batch_size=12, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 96), nn.SiLU(), nn.Linear(96, 1)))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
watch = Watch(model, optimizer)

micro_batches = 2
for epoch in range(2):
    sampler.set_epoch(epoch)
    optimizer.zero_grad()
    for i, (inputs, labels) in enumerate(watch(loader)):
        nn.functional.binary_cross_entropy_with_logits(model(inputs), labels).backward()
        if (i + 1) % micro_batches == 0:
            for p in model.parameters():
                p.grad.div_(micro_batches)
            optimizer.step()
            optimizer.zero_grad()
watch.report()
dist.destroy_process_group()
