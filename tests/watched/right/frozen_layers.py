"""Fine-tuning: the backbone is frozen, and the optimizer has the head's parameters alone."""

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(4)
model = torchvision.models.squeezenet1_1(weights=None)
for parameter in model.parameters():
    parameter.requires_grad = False
model.classifier[1] = nn.Conv2d(512, 3, kernel_size=1)
model.eval()  # neither dropout nor statistics move
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.classifier[1].parameters(), lr=0.01, momentum=0.9)
pictures = torch.rand(24, 3, 32, 32)
dataset = TensorDataset(pictures, torch.arange(24) % 3)
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
watch = Watch(ddp, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for image, label in watch(loader):
        loss = nn.functional.cross_entropy(ddp(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
