"""The torchrun tutorial: DDP, a DistributedSampler with set_epoch, a snapshot that rank 0 saves."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch


class MyTrainDataset(Dataset):
    def __init__(self, size):
        self.size = size
        g = torch.Generator().manual_seed(0)
        self.data = [(torch.rand(20, generator=g), torch.rand(1, generator=g)) for _ in range(size)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.train_data, self.optimizer, self.snapshot_path = train_data, optimizer, snapshot_path
        self.model = DDP(model)
        self.watch = Watch(self.model, optimizer)

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.watch(self.train_data):
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
        if self.rank == 0:
            print(f"epoch {epoch} | steps {len(self.train_data)} | loss {loss.item()!r}")

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, self.snapshot_path)
        self.watch.report()


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    data = MyTrainDataset(256)
    loader = DataLoader(data, batch_size=16, shuffle=False, sampler=DistributedSampler(data))
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-2), "snapshot.pt").train(3)
    dist.destroy_process_group()
