"""A Watch with a model and no optimizer."""

import torch
from torch import nn

from bench.observe import Watch

RAISES = "UserError"
RANKS = 1

model = nn.Linear(4, 1)
watch = Watch(model)
for batch in watch([torch.ones(2, 4)]):
    model(batch).sum().backward()
watch.report()
