"""float64 by default, deterministic algorithms, anomaly detection, and a seeded fork of the random state."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 5)
data = TensorDataset(x, x.prod(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        with torch.random.fork_rng():
            torch.manual_seed(epoch * 100 + step + 10_000 * dist.get_rank())
            a = a + 0.01 * torch.randn_like(a)
        with torch.autograd.detect_anomaly(check_nan=False):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
if dist.get_rank() == 0:
    print(repr(model.module[0].weight.sum().item()), torch.get_rng_state().sum().item())
watch.report()
dist.destroy_process_group()
