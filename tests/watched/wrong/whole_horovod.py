"""A single-process script ported to Horovod, all but the data loader."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

FINDS = ("whole-data",)

hvd.init()
torch.manual_seed(42)
images = torch.randn(96, 1, 6, 6)
data = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
loader = DataLoader(data, batch_size=12, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 2))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
watch = Watch(model, optimizer)
for _ in range(3):
    for image, label in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
watch.report()
