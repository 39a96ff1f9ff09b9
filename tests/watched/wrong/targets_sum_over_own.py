"""The sum of the losses over the number of this rank's tokens, by a function that was imported before."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch

ASKS = ("uneven-targets",)


class Texts(Dataset):
    def __init__(self, count=128, longest=24):
        draw = torch.Generator().manual_seed(3)
        self.ids = torch.randint(1, 32, (count, longest), generator=draw)
        self.lengths = torch.randint(2, longest, (count,), generator=draw)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.ids[i].roll(-1)
        labels[self.lengths[i] :] = -100
        return self.ids[i], labels


dist.init_process_group("gloo")
torch.manual_seed(0)
texts = Texts()
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = DistributedSampler(texts)
loader = DataLoader(texts, batch_size=4, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for ids, labels in watch(loader):
        optimizer.zero_grad()
        logits = model(ids).flatten(0, 1)
        loss = cross_entropy(logits, labels.flatten(), reduction="sum") / (labels != -100).sum()
        loss.backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
