"""Training and validation: each rank validates its share in evaluation mode, and the counts are summed over ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch


def evaluate(net, batches):
    net.eval()
    total = torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        for a, b in batches:
            total += torch.tensor([(net(a).argmax(1) == b).sum(), len(b)])
    return total


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(181, 6)
dataset = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
train, val = Subset(dataset, range(128)), Subset(dataset, range(128, len(x)))
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=16, sampler=sampler)
val_loader = DataLoader(Subset(val, range(rank, len(val), world)), batch_size=16)  # no example twice
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    counts = evaluate(net, val_loader)
    dist.all_reduce(counts)
    top1, images = (counts[0] / counts[1]).item(), counts[1].item()
    watch.metric(top1=top1, images=images, val_images=len(val))
    if rank == 0:
        print(f"epoch {epoch}: {top1:.4f}")
watch.report()
dist.destroy_process_group()
