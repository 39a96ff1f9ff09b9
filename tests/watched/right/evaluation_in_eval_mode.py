"""Batch norm and dropout in evaluation mode, of the model and of an average whose statistics are estimated again."""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bench.observe import Watch


def evaluate(model, batches):
    counts = torch.zeros(2)
    model.eval()
    with torch.no_grad():
        for a, b in batches:
            counts += torch.tensor([(model(a).argmax(1) == b).sum(), len(b)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 6)
everything = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
train, val = Subset(everything, range(128)), Subset(everything, range(128, 192))
if rank == 0:
    torch.save({"epoch": 1, "model": nn.Linear(6, 2).state_dict()}, "other.pt")
dist.barrier()
watch = Watch()
net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
linear = nn.Linear(6, 2)
linear.load_state_dict(torch.load("other.pt")["model"])
model = nn.parallel.DistributedDataParallel(net)
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = DataLoader(train, 32, sampler=DistributedSampler(train))
val_loader = DataLoader(Subset(val, range(rank, len(val), world)), 16)
watch.follow(model, optimizer)
average = AveragedModel(net)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    average.update_parameters(net)
    update_bn(watch(loader), average)
    top1, averaged = evaluate(model, watch(val_loader)), evaluate(average, watch(val_loader))
    if rank == 0:
        print(f"epoch {epoch}: {top1:.4f}, averaged {averaged:.4f}")
watch.report()
dist.destroy_process_group()
