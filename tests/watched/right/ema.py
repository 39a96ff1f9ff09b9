"""An exponential moving average of the weights on every rank, evaluated and saved; given to the Watch as another."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class ModelEMA:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            ema_v.copy_(ema_v * self.decay + (1.0 - self.decay) * model_v)


dist.init_process_group("gloo")
torch.manual_seed(3)
images, labels = torch.randn(160, 3, 6, 6), torch.randint(0, 4, (160,))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
model = nn.parallel.DistributedDataParallel(model)
ema = ModelEMA(model.module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, nesterov=True, momentum=0.9)
sampler = DistributedSampler(TensorDataset(images, labels))
loader = DataLoader(sampler.dataset, batch_size=20, sampler=sampler)
watch = Watch(model, optimizer, others={"ema": ema.module})
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ema.update(model.module)
if dist.get_rank() == 0:
    torch.save({"model": model.module.state_dict(), "ema": ema.module.state_dict()}, "last.pth")
watch.report()
dist.destroy_process_group()
