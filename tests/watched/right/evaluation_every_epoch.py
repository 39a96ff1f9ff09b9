"""Evaluation after each epoch and once within it, with .item() and .tolist() per batch; counts summed over ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch


def evaluate(model, loader):
    model.eval()
    right, seen, predictions = 0, 0, []
    with torch.no_grad():
        for value, label in loader:
            predicted = model(value).argmax(1)
            right += (predicted == label).sum().item()
            seen += label.size(0)
            predictions += predicted.tolist()
    model.train()
    counts = torch.tensor([right, seen])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item(), int(counts[1])


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(241, 9)
everything = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
train, val = Subset(everything, range(160)), Subset(everything, range(160, 241))
sampler = DistributedSampler(train)
train_loader = DataLoader(train, batch_size=16, sampler=sampler)
val_loader = DataLoader(Subset(val, range(rank, len(val), world)), batch_size=10)  # no image twice
net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (value, label) in enumerate(watch(train_loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(value), label).backward()
        optimizer.step()
        if step == 2:
            evaluate(net, val_loader)
    top1, images = evaluate(net, val_loader)
    watch.metric(top1=top1, images=images, val_images=len(val))
    if rank == 0:
        print(f"epoch {epoch}: {top1:.4f} of {images}")
watch.report()
dist.destroy_process_group()
