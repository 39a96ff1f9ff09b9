"""The random state in the checkpoint is rank 0's, and every rank restores it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("same-random",)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)
x = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x, x.argmax(1))
layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.1, batch_first=True)
model = nn.parallel.DistributedDataParallel(nn.Sequential(layer, nn.Linear(8, 8)))
optimizer = torch.optim.AdamW(model.parameters())
if rank == 0:
    torch.save({"model": model.state_dict(), "rng": torch.get_rng_state()}, "resume.pt")
dist.barrier()
checkpoint = torch.load("resume.pt")
model.load_state_dict(checkpoint["model"])
torch.set_rng_state(checkpoint["rng"])
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a.unsqueeze(1)).squeeze(1), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
