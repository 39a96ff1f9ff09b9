"""require_backward_grad_sync is set between forward and backward, where DDP does not read it any more."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-accumulation",)
SAYS = "set it before that forward"

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 8)
dataset = TensorDataset(x, x.argmax(1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 24, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for images, labels in watch(loader):
        optimizer.zero_grad()
        for number, (a, b) in enumerate(zip(images.chunk(3), labels.chunk(3), strict=True), 1):
            loss = nn.functional.cross_entropy(model(a), b) / 3
            model.require_backward_grad_sync = number == 3
            loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
