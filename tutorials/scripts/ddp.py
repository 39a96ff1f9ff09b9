"""One process for each device: torchrun --nproc-per-node=2 ddp.py"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

EPOCHS, BATCH, LR = 3, 64, 0.1  # BATCH: of a step, over all processes

# who am I
on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()

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
model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)  # rank 0's weights to all
optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)

for epoch in range(EPOCHS):
    # training
    model.train()
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()  # gradients become means
        optimizer.step()

    # validation
    model.eval()
    counts = torch.zeros(2, device=device)  # right, all
    with torch.no_grad():
        for x, y in val_loader:
            right = model.module(x.to(device)).argmax(1) == y.to(device)
            counts += torch.stack([right.sum(), torch.tensor(len(y), device=device)])
    dist.all_reduce(counts)
    if rank == 0:
        print(f"epoch {epoch + 1}: top-1 {counts[0] / counts[1]:.4f} of {int(counts[1])} images")

# saving
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
