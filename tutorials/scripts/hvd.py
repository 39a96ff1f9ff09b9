"""One process for each device: horovodrun -np 2 python hvd.py"""

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

EPOCHS, BATCH, LR = 3, 64, 0.1  # BATCH: of a step, over all processes

# who am I
hvd.init()
on_gpu = torch.cuda.device_count() >= hvd.local_size()
device = torch.device("cuda", hvd.local_rank()) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
rank, size = hvd.rank(), hvd.size()

# data
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16
train_set, val_set = TensorDataset(images[:1536], labels[:1536]), TensorDataset(images[1536:], labels[1536:])
sampler = DistributedSampler(train_set, size, rank, shuffle=True)
loader = DataLoader(train_set, BATCH // size, sampler=sampler)
val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), size)), BATCH)  # no image twice

# model and optimizer
torch.manual_seed(rank)  # each process draws its own dropout
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)).to(device)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # rank 0's weights to all
optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(EPOCHS):
    # training
    model.train()
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()  # waits until the gradients are means

    # validation
    model.eval()
    counts = torch.zeros(2, device=device)  # right, all
    with torch.no_grad():
        for x, y in val_loader:
            right = model(x.to(device)).argmax(1) == y.to(device)
            counts += torch.stack([right.sum(), torch.tensor(len(y), device=device)])
    counts = hvd.allreduce(counts, op=hvd.Sum)
    if rank == 0:
        print(f"epoch {epoch + 1}: top-1 {counts[0] / counts[1]:.4f} of {int(counts[1])} images")

# saving
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
hvd.shutdown()
