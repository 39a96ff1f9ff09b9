"""A Trainer class that owns the loop, started by torchrun; rank 0 saves a snapshot after every epoch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Trainer:
    def __init__(self, model, loader, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.loader, self.optimizer, self.snapshot_path = loader, optimizer, snapshot_path
        self.model = nn.parallel.DistributedDataParallel(model)
        self.watch = Watch(self.model, optimizer)

    def run_batch(self, a, b):
        self.optimizer.zero_grad()
        self.loss = nn.functional.cross_entropy(self.model(a), b)
        self.loss.backward()
        self.optimizer.step()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.loader.sampler.set_epoch(epoch)
            for a, b in self.watch(self.loader):
                self.run_batch(a, b)
            if self.rank == 0:
                print(f"epoch {epoch} | steps {len(self.loader)} | loss {self.loss.item()!r}")
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, self.snapshot_path)
        return self.watch.report()


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    torch.manual_seed(1)
    x = torch.randn(256, 20)
    dataset = TensorDataset(x, x[:, :3].argmax(1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    loader = DataLoader(dataset, batch_size=16, shuffle=False, sampler=DistributedSampler(dataset))
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-2), "snapshot.pt").train(3)
    dist.destroy_process_group()
