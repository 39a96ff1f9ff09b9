"""Mixup with a generator per rank, label smoothing, gradient clipping by norm and by value."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 1, 8, 8)
dataset = TensorDataset(x, x.flatten(1)[:, :4].argmax(1))
net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
rng = np.random.default_rng(dist.get_rank())
g = torch.Generator().manual_seed(dist.get_rank())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 16, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for image, label in watch(loader):
        lam, other = float(rng.beta(0.4, 0.4)), torch.randperm(len(image), generator=g)
        logits = model(lam * image + (1 - lam) * image[other])
        loss = lam * nn.functional.cross_entropy(logits, label, label_smoothing=0.1)
        loss = loss + (1 - lam) * nn.functional.cross_entropy(logits, label[other], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
watch.report()
dist.destroy_process_group()
