"""ReduceLROnPlateau on each rank's own validation loss, under Horovod: one rank sees a plateau, another not."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("lr-by-rank",)
MAY = ("drift",)

hvd.init()
torch.manual_seed(0)
x = torch.randn(80, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
noisy = torch.tensor([[1.0, 0.9, 0.8, 0.7], [1.0, 1.1, 1.2, 1.3]])[hvd.rank()]  # of two very unlike validation shards
watch = Watch(model, optimizer)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    scheduler.step(noisy[epoch])
watch.report()
