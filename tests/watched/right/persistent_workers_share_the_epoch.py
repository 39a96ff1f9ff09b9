"""A stream that shuffles by the epoch, in workers that stay, which read the epoch from memory that they share."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.observe import Watch

MAY = ("loader-starvation",)  # a worker waits for a core where others compute, too


class Shuffled(IterableDataset):
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()
        self.x = torch.randn(192, 6, generator=torch.Generator().manual_seed(1))

    def set_epoch(self, epoch):
        self._epoch.fill_(epoch)

    def __iter__(self):
        order = torch.randperm(192, generator=torch.Generator().manual_seed(int(self._epoch)))
        worker = get_worker_info()
        for i in order[self.rank :: self.world][worker.id :: worker.num_workers].tolist():
            yield self.x[i], int(self.x[i].argmax())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    stream = Shuffled(dist.get_rank(), dist.get_world_size())
    loader = DataLoader(stream, 8, num_workers=2, persistent_workers=True)
    watch = Watch(model, optimizer)
    for epoch in range(2):
        stream.set_epoch(epoch)
        for a, b in watch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
