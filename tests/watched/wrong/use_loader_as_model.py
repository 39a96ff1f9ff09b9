"""The loader is handed over in the place of the model."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from bench.observe import Watch

RAISES = "UserError"
RANKS = 1

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.ones(8, 4), batch_size=2)
watch = Watch(loader, optimizer)
for batch in watch(loader):
    model(batch).sum().backward()
    optimizer.step()
watch.report()
