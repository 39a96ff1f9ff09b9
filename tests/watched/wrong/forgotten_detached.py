"""The optimizer has all parameters, but .detach() between two parts keeps the first where it is."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("forgotten-parameters",)


class TwoStages(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.classifier = nn.Linear(9, 64), nn.Linear(64, 3)

    def forward(self, x):
        features = self.encoder(x).relu()
        return self.classifier(features.detach())  # for a figure, once


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 9)
dataset = TensorDataset(x, x[:, :3].argmax(1))
model = nn.parallel.DistributedDataParallel(TwoStages(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
