"""ZeroRedundancyOptimizer: each rank steps a part of the parameters and broadcasts it; consolidated to save."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(112, 6)
dataset = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
model = nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
optimizer.consolidate_state_dict(to=0)
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
watch.report()
dist.destroy_process_group()
