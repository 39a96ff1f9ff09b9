"""A GAN of which the Watch follows both networks; the generator's loss is not exchanged in the discriminator."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(17)
angle = torch.rand(128) * 6.283
real = TensorDataset(torch.stack([angle.sin(), angle.cos()], 1))
DDP = nn.parallel.DistributedDataParallel
G = DDP(nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2)))
D = DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
optimizer_g, optimizer_d = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
sampler = DistributedSampler(real)
loader = DataLoader(real, batch_size=16, sampler=sampler, drop_last=True)
torch.manual_seed(100 + dist.get_rank())
criterion = nn.BCEWithLogitsLoss()
watch = Watch(nn.ModuleList([G, D]), [optimizer_g, optimizer_d])
for epoch in range(4):
    sampler.set_epoch(epoch)
    for (data,) in watch(loader):
        ones, zeros = torch.ones(len(data), 1), torch.zeros(len(data), 1)
        fake = G(torch.randn(len(data), 3))
        optimizer_d.zero_grad()
        (criterion(D(data), ones) + criterion(D(fake.detach()), zeros)).backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        with D.no_sync():
            criterion(D(fake), ones).backward()
        optimizer_g.step()
watch.report()
dist.destroy_process_group()
