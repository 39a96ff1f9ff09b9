"""A training is resumed: its epoch, its optimizer and its random state, and not its weights."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("weights-not-loaded",)


def made():
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(128, 6)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
before, optimizer = made()  # as an earlier run left them
nn.functional.cross_entropy(before(x), dataset.tensors[1]).backward()
optimizer.step()
if rank == 0:
    torch.save({"epoch": 2, "model": before.state_dict(), "optimizer": optimizer.state_dict()}, "epoch2.pt")
dist.barrier()

watch = Watch()
torch.manual_seed(1)
model, optimizer = made()
checkpoint = torch.load("epoch2.pt", map_location="cpu")
optimizer.load_state_dict(checkpoint["optimizer"])
start = checkpoint["epoch"]
model = nn.parallel.DistributedDataParallel(model)
watch.follow(model, optimizer)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
for epoch in range(start, 5):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
