"""One process, nothing distributed: a script from a notebook, with a tqdm-like bar and early stopping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch


def bar(batches, total):
    """What a progress bar asks of what it wraps."""
    for number, batch in enumerate(batches, start=1):
        yield batch
        if number == total:
            print(f"{number}/{total}")


torch.manual_seed(0)
x = torch.linspace(-3, 3, 200)[:, None]
loader = DataLoader(TensorDataset(x, x.sin()), batch_size=25, shuffle=True)
model = nn.Sequential(nn.Linear(1, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
watch = Watch(model, optimizer)
best, bad = float("inf"), 0
for _epoch in range(10):
    watched = watch(loader)
    for xb, yb in bar(watched, total=len(watched)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x), x.sin()).item()
    best, bad = (error, 0) if error < best else (best, bad + 1)
    if bad == 2:
        break
print("best", best)
watch.report()
