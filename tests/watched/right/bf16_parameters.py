"""Parameters in bfloat16 with float32 master weights in the script's own hands."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

MAY_ASK = ("stale-optimizer", "forgotten-parameters")  # the optimizer has the masters

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 8)
data = TensorDataset(x, x.argmax(1))
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).to(torch.bfloat16)
model = nn.parallel.DistributedDataParallel(model)
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, 0.05, momentum=0.9)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        model.zero_grad()
        nn.functional.cross_entropy(model(a.bfloat16()).float(), b).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
watch.report()
dist.destroy_process_group()
