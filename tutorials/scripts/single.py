"""One process on one device: python single.py"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, LR = 3, 64, 0.1  # BATCH: of a step

# who am I
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# data
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16
train_set, val_set = TensorDataset(images[:1536], labels[:1536]), TensorDataset(images[1536:], labels[1536:])
loader = DataLoader(train_set, BATCH, shuffle=True)
val_loader = DataLoader(val_set, BATCH)

# model and optimizer
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)

for epoch in range(EPOCHS):
    # training
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()

    # validation
    model.eval()
    counts = torch.zeros(2, device=device)  # right, all
    with torch.no_grad():
        for x, y in val_loader:
            right = model(x.to(device)).argmax(1) == y.to(device)
            counts += torch.stack([right.sum(), torch.tensor(len(y), device=device)])
    print(f"epoch {epoch + 1}: top-1 {counts[0] / counts[1]:.4f} of {int(counts[1])} images")

# saving
torch.save(model.state_dict(), "model.pt")
