"""The wrapped network is in a module of the script's, and the ranks evaluate the network in it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

ASKS = ("unsynced-buffers",)


@torch.inference_mode()
def evaluate(net, loader):
    net.eval()
    errors = torch.stack([nn.functional.mse_loss(net(a), b) for a, b in loader])
    net.train()
    dist.all_reduce(errors)
    return errors.mean()


class Task(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, a, b):
        return nn.functional.mse_loss(self.model(a), b)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(160, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
train, val = Subset(data, range(128)), Subset(data, range(128 + rank, 160, world))
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
model = Task(nn.parallel.DistributedDataParallel(net))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
sampler = DistributedSampler(train)
loader, val_loader = DataLoader(train, 16, sampler=sampler), DataLoader(val, 8)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        model(a, b).backward()
        optimizer.step()
    print(f"epoch {epoch}: {evaluate(net, val_loader):.4f}")
watch.report()
dist.destroy_process_group()
