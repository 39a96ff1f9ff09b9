"""mp.spawn with a tcp:// address, the way of the ImageNet example; workers are started from one process."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch


def main_worker(gpu, ngpus, args):
    dist.init_process_group("gloo", init_method=args["dist_url"], world_size=ngpus, rank=gpu)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    x = torch.randn(96, 10)
    train = TensorDataset(x, (x.sum(1) > 0).long())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=args["batch_size"] // ngpus, shuffle=(sampler is None), sampler=sampler)
    watch = Watch(model, optimizer)
    for epoch in range(args["epochs"]):
        sampler.set_epoch(epoch)
        for images, target in watch(loader):
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if gpu == 0:
        print("final loss", repr(loss.item()))
        torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pth.tar")
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    port = os.environ["MASTER_PORT"]
    mp.spawn(main_worker, nprocs=2, args=(2, {"dist_url": f"tcp://127.0.0.1:{port}", "batch_size": 16, "epochs": 3}))
