"""A step per parameter inside the backward pass, from post-accumulate-grad hooks; there is no step in the loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

RANKS = 1

torch.manual_seed(0)
x = torch.randn(128, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.01, momentum=0.9) for p in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
watch = Watch(model, optimizers[model[0].weight])
for _ in range(3):
    for a, b in watch(loader):
        nn.functional.mse_loss(model(a), b).backward()
print(sum(p.double().sum().item() for p in model.parameters()))
watch.report()
