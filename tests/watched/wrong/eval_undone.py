"""One process: the validation calls model.train() at its end, and begins the test set's with it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

ASKS = ("no-eval",)
RANKS = 1


@torch.inference_mode()
def accuracy(model, batches):
    hits = total = 0
    for a, b in batches:
        hits, total = hits + (model(a).argmax(1) == b).sum().item(), total + len(b)
    return hits / total


torch.manual_seed(0)
x = torch.randn(192, 6)
y = (x[:, 0] > x[:, 1]).long()
train, val, test = (TensorDataset(x[i : i + 64], y[i : i + 64]) for i in (0, 64, 128))
model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(train, 16, shuffle=True)
watch = Watch(model, optimizer)
for epoch in range(3):
    model.train()
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    model.eval()
    print(f"epoch {epoch}: {accuracy(model, watch(DataLoader(val, 32))):.4f}")
    model.train()
print(f"test: {accuracy(model, watch(DataLoader(test, 32))):.4f}")
watch.report()
