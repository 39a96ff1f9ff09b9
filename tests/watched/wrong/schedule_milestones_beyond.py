"""MultiStepLR with milestones in the steps of one device: the second one is never reached."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("schedule-length",)

EPOCHS, BATCH = 3, 10

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(240, 6)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
steps = EPOCHS * len(dataset) // BATCH
milestones = [steps // 3, 2 * steps // 3]
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, BATCH, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        schedule.step()
watch.report()
dist.destroy_process_group()
