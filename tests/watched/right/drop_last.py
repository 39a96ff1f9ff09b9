"""drop_last in the sampler and in the loader: a few images are left out of an epoch, others in each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too

dist.init_process_group("gloo")
torch.manual_seed(6)
x = torch.randn(203, 10)
trainset = TensorDataset(x, x.abs().mean(1, keepdim=True))
sampler = DistributedSampler(trainset, drop_last=True)
trainloader = DataLoader(trainset, batch_size=12, sampler=sampler, drop_last=True, num_workers=1)
net = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(10, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
watch = Watch(net, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, target in watch(trainloader):
        optimizer.zero_grad()
        criterion = nn.SmoothL1Loss()
        criterion(net(inputs), target).backward()
        optimizer.step()
print("rank", dist.get_rank(), "steps an epoch", len(trainloader))
watch.report()
dist.destroy_process_group()
