"""A GAN that zeroes the discriminator's gradients late, when the generator's backward pass has added to them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(3)
angle = torch.rand(128) * 6.283
dataset = TensorDataset(torch.stack([angle.sin(), angle.cos()], 1))
DDP = nn.parallel.DistributedDataParallel
G = DDP(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)))
D = DDP(nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1)))
optG, optD = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
torch.manual_seed(50 + dist.get_rank())
bce = nn.functional.binary_cross_entropy_with_logits
watch = Watch(D, [optD, optG])
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (real,) in watch(loader):
        fake = G(torch.randn(len(real), 4))
        judged = D(torch.cat([real, fake.detach()]))
        bce(judged, (torch.arange(2 * len(real)) < len(real)).float()[:, None]).backward()
        optD.step()
        bce(D(fake), torch.ones(len(real), 1)).backward()
        optG.step()
        optD.zero_grad(set_to_none=False)
        optG.zero_grad()
watch.report()
dist.destroy_process_group()
