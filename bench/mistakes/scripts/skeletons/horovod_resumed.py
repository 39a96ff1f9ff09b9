"""A resume under Horovod that rank 0 reads: Adam's state is sent first and the parameters after it, with decay."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)


hvd.init()
data = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(data, data.sum(1, keepdim=True))
if hvd.rank() == 0:
    model, optimizer = build()
    nn.functional.mse_loss(model(data), data.sum(1, keepdim=True)).backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")

watch = Watch()
model, optimizer = build()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
if hvd.rank() == 0:
    checkpoint = torch.load("checkpoint.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
watch.follow(model, optimizer)

sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
