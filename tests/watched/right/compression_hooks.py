"""torch's own communication hooks: fp16 compression, and a bucket view that is kept for the next step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 8)
dataset = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 8))
model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
model.register_comm_hook(state=None, hook=default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
