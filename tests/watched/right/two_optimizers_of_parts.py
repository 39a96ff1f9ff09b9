"""Two optimizers for two parts of one model, the second of which is unknown to the Watch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.dense = nn.EmbeddingBag(50, 64), nn.Linear(64, 1)

    def forward(self, ids):
        return self.dense(self.embedding(ids))


dist.init_process_group("gloo")
torch.manual_seed(0)
ids = torch.randint(0, 50, (128, 6))
dataset = TensorDataset(ids, ids.float().mean(1, keepdim=True) / 25 - 1)
model = nn.parallel.DistributedDataParallel(Recommender())
dense = torch.optim.Adam(model.module.dense.parameters(), 1e-3)
wide = torch.optim.Adagrad(model.module.embedding.parameters(), 0.1)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, dense)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        for optimizer in (dense, wide):
            optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        for optimizer in (dense, wide):
            optimizer.step()
watch.report()
dist.destroy_process_group()
