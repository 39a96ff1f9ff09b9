"""The optimizer first and the model second."""

import torch
import torch.distributed as dist
from torch import nn

from bench.observe import Watch

RAISES = "UserError"

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = Watch(optimizer, model)
for batch in watch([torch.ones(2, 4)]):
    model(batch).sum().backward()
    optimizer.step()
watch.report()
