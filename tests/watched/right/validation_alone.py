"""The Watch sees the validation alone, whose sampler shares out the same order each time."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


def validate(net, batches):
    counts = torch.zeros(2)
    net.eval()
    with torch.no_grad():
        for a, b in batches:
            counts += torch.tensor([(net(a).argmax(1) == b).sum(), len(b)])
    net.train()
    return counts


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(150, 5)
y = (x.sum(1) > 0).long()
train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(train, 8, sampler=DistributedSampler(train))
shared = DataLoader(val, 16, sampler=DistributedSampler(val, shuffle=False))
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    counts = validate(net, watch(shared))
    dist.all_reduce(counts)
    print(f"epoch {epoch}: {counts[0] / counts[1]:.4f}")
watch.report()
dist.destroy_process_group()
