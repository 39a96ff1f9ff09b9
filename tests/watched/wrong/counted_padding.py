"""354 of 353: a DistributedSampler pads the validation set, and the image at its end is counted twice."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("counted-twice",)

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(449, 5)
y = (x.sum(1) > 0).long()
train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(train, 8, sampler=DistributedSampler(train))
val_loader = DataLoader(val, 64, sampler=DistributedSampler(val, shuffle=False))
watch = Watch(model, optimizer)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    counts = torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        for a, b in val_loader:
            counts += torch.tensor([(net(a).argmax(1) == b).sum(), len(b)])
    dist.all_reduce(counts)
    watch.metric(top1=counts[0].item() / counts[1].item(), images=counts[1].item(), val_images=len(val))
watch.report()
dist.destroy_process_group()
