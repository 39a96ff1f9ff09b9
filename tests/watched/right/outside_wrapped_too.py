"""A loss with weights, wrapped as the model is, with an optimizer of its own; and a scale that is averaged by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Proxies(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(classes, width))

    def forward(self, embedding, label):
        return nn.functional.cross_entropy(nn.functional.normalize(embedding) @ self.proxies.T, label)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x, x[:, :4].argmax(1))
DDP = nn.parallel.DistributedDataParallel
model = DDP(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 8)))
criterion, scale = DDP(Proxies(4, 8)), nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [scale]}], lr=0.02)
of_loss = torch.optim.Adam(criterion.parameters(), lr=1e-2)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, [optimizer, of_loss])
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        of_loss.zero_grad()
        criterion(scale * model(a), b).backward()
        dist.all_reduce(scale.grad)
        scale.grad /= world
        optimizer.step()
        of_loss.step()
watch.report()
dist.destroy_process_group()
