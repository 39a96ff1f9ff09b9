"""A GAN: two networks, two optimizers, two backward passes a step; the Watch follows the discriminator."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(31)
ring = torch.rand(160) * 6.283
real = TensorDataset(torch.stack([ring.sin(), ring.cos()], 1))
DDP = nn.parallel.DistributedDataParallel
netG = DDP(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)), broadcast_buffers=False)
netD = DDP(nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)), broadcast_buffers=False)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
sampler = DistributedSampler(real)
loader = DataLoader(real, batch_size=16, sampler=sampler, drop_last=True)
torch.manual_seed(1000 + dist.get_rank())  # other noise on every rank
criterion = nn.BCEWithLogitsLoss()
watch = Watch(netD, optimizerD)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (data,) in watch(loader):
        ones, zeros = torch.ones(len(data), 1), torch.zeros(len(data), 1)
        fake = netG(torch.randn(len(data), 4))
        netD.zero_grad()
        both = netD(torch.cat([data, fake.detach()]))
        errD = criterion(both, torch.cat([ones, zeros]))
        errD.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake), ones)
        errG.backward()
        optimizerG.step()
    if dist.get_rank() == 0:
        print(f"[{epoch}] Loss_D {errD.item():.6f} Loss_G {errG.item():.6f}")
watch.report()
dist.destroy_process_group()
