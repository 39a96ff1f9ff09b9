"""A run that is resumed from its own checkpoint: model, optimizer, scheduler, epoch and random state."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def build():
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def epochs(first, last, model, optimizer, scheduler, batches):
    for epoch in range(first, last):
        loader.sampler.set_epoch(epoch)
        for a, b in batches(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        scheduler.step()


dist.init_process_group("gloo")
g = torch.Generator().manual_seed(1)
x = torch.randn(120, 6, generator=g)
data = TensorDataset(x, x.amax(1, keepdim=True))
loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data))

parts = build()
epochs(0, 2, *parts, iter)
if dist.get_rank() == 0:
    names = ("model", "optimizer", "scheduler")
    torch.save({n: p.state_dict() for n, p in zip(names, parts, strict=True)} | {"rng": torch.get_rng_state()}, "ck.pt")
dist.barrier()

model, optimizer, scheduler = build()
watch = Watch(model, optimizer)
checkpoint = torch.load("ck.pt", map_location="cpu")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
torch.set_rng_state(checkpoint["rng"])
epochs(2, 4, model, optimizer, scheduler, watch)
print(dist.get_rank(), optimizer.param_groups[0]["lr"], sum(p.double().sum().item() for p in model.parameters()))
watch.report()
dist.destroy_process_group()
