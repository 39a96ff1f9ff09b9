"""DDP with init_sync=False for a faster start, and weights from seeds by rank."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("unsynced-init",)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1000 + int(os.environ["RANK"]))
    net = torch.nn.Sequential(torch.nn.Linear(5, 50), torch.nn.SELU(), torch.nn.Linear(50, 1))
    net = DistributedDataParallel(net, init_sync=False)
    g = torch.Generator().manual_seed(9)
    x = torch.rand(90, 5, generator=g)
    loader = DataLoader(TensorDataset(x, x.sum(1)), 9, sampler=DistributedSampler(range(90)))
    opt = torch.optim.RMSprop(net.parameters(), 1e-3)
    watch = Watch(net, opt)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for a, b in watch(loader):
            opt.zero_grad()
            (net(a).squeeze(1) - b).square().mean().backward()
            opt.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
