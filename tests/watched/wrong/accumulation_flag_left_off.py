"""require_backward_grad_sync switched by hand, and switched on again after the last pass, not before it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-accumulation",)
MAY = ("drift", "no-exchange")

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
micro = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        model.require_backward_grad_sync = False
        (nn.functional.mse_loss(model(a), b) / 5).backward()
        micro += 1
        if micro == 5:
            model.require_backward_grad_sync = True
            optimizer.step()
            optimizer.zero_grad()
            micro = 0
watch.report()
dist.destroy_process_group()
