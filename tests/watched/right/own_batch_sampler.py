"""Batches of similar length from a batch sampler of one's own, with its own set_epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from bench.observe import Watch


class Sentences(Dataset):
    def __init__(self, count=128):
        g = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(4, 12, (count,), generator=g).tolist()
        self.items = [torch.randint(1, 30, (n,), generator=g) for n in self.lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], len(self.items[i])


class BucketBatchSampler:
    def __init__(self, lengths, batch_size, rank, world):
        self.lengths, self.batch_size, self.rank, self.world, self.epoch = lengths, batch_size, rank, world, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // (self.batch_size * self.world)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        noise = torch.rand(len(self.lengths), generator=g)
        order = (torch.tensor(self.lengths) + noise).argsort()
        batches = order.split(self.batch_size)
        for k in torch.randperm(len(batches), generator=g)[self.rank :: self.world].tolist():
            yield batches[k].tolist()


def collate(examples):
    tokens, lengths = zip(*examples, strict=True)
    return {"tokens": pad_sequence(tokens, batch_first=True), "lengths": torch.tensor(lengths)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 64), nn.Linear(64, 1)

    def forward(self, tokens):
        return self.out(self.embed(tokens).mean(1))


dist.init_process_group("gloo")
torch.manual_seed(4)
data = Sentences()
batches = BucketBatchSampler(data.lengths, 8, dist.get_rank(), dist.get_world_size())
loader = DataLoader(data, batch_sampler=batches, collate_fn=collate)
model = nn.parallel.DistributedDataParallel(Classifier())
optim = torch.optim.Adagrad(model.parameters(), lr=0.01)
watch = Watch(model, optim)
for epoch in range(3):
    batches.set_epoch(epoch)
    for batch in watch(loader):
        optim.zero_grad()
        loss = (model(batch["tokens"])[:, 0] - batch["lengths"]).pow(2).mean()
        loss.backward()
        optim.step()
watch.report()
dist.destroy_process_group()
