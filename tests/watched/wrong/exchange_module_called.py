"""model.module is called in the training loop, past DDP's forward."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("no-exchange",)
MAY = ("drift",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(10, 64), nn.Linear(64, 10)

    def encode(self, x):
        return self.encoder(x).relu()

    def forward(self, x):
        return self.decoder(self.encode(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(112, 10)
dataset = TensorDataset(x)
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (a,) in watch(loader):
        code = model.module.encode(a)
        loss = nn.functional.mse_loss(model.module.decoder(code), a) + 1e-3 * code.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
