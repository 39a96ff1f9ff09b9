"""Nothing of the checkpoint fits, and it is loaded before there is a Watch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

CANNOT = "the weights were loaded before the Watch was made"
UNSEEN = ("strict-false",)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1)))
plain = {k.removeprefix("module."): v + 1 for k, v in model.state_dict().items()}
model.load_state_dict(plain, strict=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(80, 5)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
