"""--max-steps for a trial run: every epoch is left after a few batches, in another order each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too

MAX_STEPS = 5

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(200, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(6, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=10, sampler=sampler, num_workers=1)
watch = Watch(model, optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        if step == MAX_STEPS:
            break
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
