"""Every rank evaluates all validation images, and the counts are summed over ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("counted-twice",)


def evaluate(net, loader):
    total = torch.zeros(2)
    with torch.inference_mode():
        for a, b in loader:
            total += torch.stack([(net(a) - b).abs().sum(), torch.tensor(float(len(b)))])
    dist.all_reduce(total)
    return total.tolist()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(140, 6)
y = x.sum(1, keepdim=True)
train, val = TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(train, 10, sampler=DistributedSampler(train))
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    error, images = evaluate(net, DataLoader(val, 20))
    watch.metric(mae=error / images, images=images, val_images=len(val))
watch.report()
dist.destroy_process_group()
