"""Every rank saves its checkpoint under the same name."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("many-writers",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 4)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    torch.save({"epoch": epoch, "model": model.module.state_dict()}, f=f"epoch{epoch}.pt")
watch.report()
dist.destroy_process_group()
