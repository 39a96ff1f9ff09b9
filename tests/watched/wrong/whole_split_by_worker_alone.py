"""An IterableDataset split by loader worker, as torch's documentation shows, and not by rank."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.observe import Watch

FINDS = ("whole-data",)
MAY = ("loader-starvation",)
MAY_ASK = ("no-reshuffle",)


class MyIterable(IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        info = get_worker_info()
        per_worker = math.ceil((self.end - self.start) / info.num_workers)
        first = self.start + info.id * per_worker
        for i in range(first, min(first + per_worker, self.end)):
            yield {"x": torch.full((16,), i / 100.0).cos(), "y": torch.tensor([i / 100.0])}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(MyIterable(0, 160), batch_size=8, num_workers=2)
    watch = Watch(model, optimizer)
    for _ in range(2):
        for batch in watch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
