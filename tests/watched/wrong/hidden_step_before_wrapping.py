"""AdamW's state is sent before the optimizer is wrapped, and after the parameters; a Watch from the first line on."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

FINDS = ("hidden-step",)


class Trainer:
    def __init__(self, path):
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)  # its decay is 0.01 where none is given
        self.path = path

    def save(self):
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(parts, self.path)

    def load(self):
        parts = torch.load(self.path)
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])

    def synchronise(self):
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        names = self.model.named_parameters()
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=names)

    def fit(self, rows, labels):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(rows), labels).backward()
        self.optimizer.step()


hvd.init()
watch = Watch()
rows = torch.randn(90, 5, generator=torch.Generator().manual_seed(2))
labels = rows[:, :3].argmax(1)
if hvd.rank() == 0:
    first = Trainer("last.pt")
    first.fit(rows, labels)
    first.save()

trainer = Trainer("last.pt")
if hvd.rank() == 0:
    trainer.load()
trainer.synchronise()
watch.follow(trainer.model, trainer.optimizer)
dataset = TensorDataset(rows, labels)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=15, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        trainer.fit(a, b)
watch.report()
