"""A GAN whose discriminator is wrapped and whose generator is not."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("other-replica",)

dist.init_process_group("gloo")
torch.manual_seed(0)
real = torch.randn(128, 2) * 0.1 + torch.tensor([1.0, -1.0])
dataset = TensorDataset(real)
G = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(), nn.Linear(64, 1)))
optG, optD = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
torch.manual_seed(10 + dist.get_rank())
bce = nn.BCEWithLogitsLoss()
watch = Watch(D, optD, others={"generator": G})
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (data,) in watch(loader):
        fake = G(torch.randn(len(data), 4))
        optD.zero_grad()
        logits = D(torch.cat([data, fake.detach()]))
        bce(logits, torch.cat([torch.ones(len(data), 1), torch.zeros(len(data), 1)])).backward()
        optD.step()
        optG.zero_grad()
        bce(D.module(fake), torch.ones(len(data), 1)).backward()
        optG.step()
watch.report()
dist.destroy_process_group()
