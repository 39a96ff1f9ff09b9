"""Rank 0 draws samples from the wrapped language model, whose table of positions is a buffer that DDP broadcasts."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ANY = ("rank0-forward", "rank0-collective")
HANGS = True


class Bigram(nn.Module):
    def __init__(self, vocab=20):
        super().__init__()
        self.table, self.out = nn.Embedding(vocab, 64), nn.Linear(64, vocab)
        self.register_buffer("places", torch.arange(64.0).sin().repeat(64, 1))

    def forward(self, idx):
        return self.out(self.table(idx) + self.places[: idx.shape[1]])


@torch.no_grad()
def generate(model, idx, count):
    for _ in range(count):
        idx = torch.cat([idx, model(idx)[:, -1:].argmax(-1)], dim=1)
    return idx


dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 20, (96, 9))
dataset = TensorDataset(tokens[:, :-1], tokens[:, 1:])
model = nn.parallel.DistributedDataParallel(Bigram())
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 6, sampler=sampler)
watch, step = Watch(model, optimizer, hang_s=3), 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        loss = nn.functional.cross_entropy(model(a).flatten(0, 1), b.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    if dist.get_rank() == 0:
        print("".join(chr(97 + t) for t in generate(model, torch.zeros(1, 1, dtype=torch.long), 8)[0].tolist()))
watch.report()
dist.destroy_process_group()
