"""nn.DataParallel in one process on a machine without GPUs, where it is the module itself; ReduceLROnPlateau."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from bench.observe import Watch

RANKS = 1

torch.manual_seed(9)
x = torch.randn(220, 11)
train, val = random_split(TensorDataset(x, x[:, 3].abs()), [180, 40])
model = nn.DataParallel(nn.Sequential(nn.Linear(11, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
loader = DataLoader(train, batch_size=20, shuffle=True)
watch = Watch(model, optimizer)
for epoch in range(4):
    model.train()
    for value, wanted in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(value)[:, 0], wanted).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a)[:, 0], b) for a, b in DataLoader(val, batch_size=40)]
    plateau.step(torch.stack(losses).mean())
    print(epoch, torch.stack(losses).mean().item(), optimizer.param_groups[0]["lr"])
torch.save(model.module.state_dict(), "model.pt")
watch.report()
