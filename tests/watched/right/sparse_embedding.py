"""Sparse gradients of an embedding, with SparseAdam beside another optimizer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(100, 32, mode="sum", sparse=True)
        self.out = nn.Linear(32, 2)

    def forward(self, ids):
        return self.out(self.embedding(ids))


dist.init_process_group("gloo")
torch.manual_seed(0)
ids = torch.randint(0, 100, (128, 5))
data = TensorDataset(ids, (ids.sum(1) > 250).long())
model = nn.parallel.DistributedDataParallel(Words())
sparse = torch.optim.SparseAdam(list(model.module.embedding.parameters()), 1e-2)
dense = torch.optim.Adam(model.module.out.parameters(), 1e-2)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
watch = Watch(model, dense)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        model.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        sparse.step()
        dense.step()
watch.report()
dist.destroy_process_group()
