"""Each rank reads the files of its own disk, one has fewer: the others wait for its gradients for ever."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.observe import Watch

ANY = ("uneven-steps", "rank0-collective")
HANGS = True

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
x = torch.randn(48 if rank == 0 else 80, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = Watch(model, optimizer, hang_s=3)
for a, b in watch(loader):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
dist.barrier()
watch.report()
dist.destroy_process_group()
