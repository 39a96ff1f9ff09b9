"""The mean of the ranks' accuracies, though their shards have unequal lengths: 67 and 33 of 100 images."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch

CANNOT = "all ranks report the same figure of all images: how it was put together is the script's own"

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(196, 6)
y = (x[:, 0] > 0).long()
train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(train)
loader = DataLoader(train, 8, sampler=sampler)
val_loader = DataLoader(Subset(val, [range(67), range(67, 100)][rank]), 20)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        hits = torch.cat([net(a).argmax(1) == b for a, b in val_loader]).float()
    mean = hits.mean()
    dist.all_reduce(mean)
    watch.metric(top1=mean.item() / world, images=len(val), val_images=len(val))
watch.report()
dist.destroy_process_group()
