"""The model is handed over in the place of the loader: watch(model)."""

import torch
from torch import nn

from bench.observe import Watch

RAISES = "UserError"
RANKS = 1

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = Watch(model, optimizer)
for batch in watch(model):
    model(batch).sum().backward()
    optimizer.step()
watch.report()
