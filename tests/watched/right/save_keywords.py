"""torch.save and torch.load with keyword arguments, into files, buffers and by map_location."""

import io
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
rank = dist.get_rank()
watch = Watch()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1))
if rank == 0:
    torch.save(obj=net.state_dict(), f="start.pt")
    torch.save(net.state_dict(), f="second.pt")
dist.barrier()
net.load_state_dict(state_dict=torch.load(f="start.pt", map_location="cpu", weights_only=True), strict=True)
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(params=model.parameters(), lr=0.05)
watch.follow(model, optimizer)
x = torch.rand(80, 5)
dataset = TensorDataset(x, x.mean(1, keepdim=True))
sampler = DistributedSampler(dataset=dataset, shuffle=True)
loader = DataLoader(dataset=dataset, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch=epoch)
    for value, wanted in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(input=model(value), target=wanted).backward()
        optimizer.step()
buffer = io.BytesIO()
torch.save(obj=model.module.state_dict(), f=buffer, _use_new_zipfile_serialization=True)
buffer.seek(0)
again = torch.load(f=buffer, weights_only=True)
print(rank, sorted(again), sum(v.double().sum().item() for v in again.values()))
if rank == 0:
    with open("end.pt", "wb") as file:
        torch.save(obj=again, f=file)
    os.remove("second.pt")
watch.report()
dist.destroy_process_group()
