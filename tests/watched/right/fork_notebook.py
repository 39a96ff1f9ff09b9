"""Started from a notebook: start_processes with fork, the model made before, an env:// address set by hand."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

RANKS = 1

torch.manual_seed(0)
inputs = torch.randn(120, 5)
dataset = TensorDataset(inputs, inputs @ torch.tensor([[1.0], [2.0], [0.0], [-1.0], [3.0]]))
net = nn.Sequential(nn.Linear(5, 80), nn.Tanh(), nn.Linear(80, 1))


def train(rank, world_size, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    ddp_net = nn.parallel.DistributedDataParallel(net)
    opt = optim.Adam(ddp_net.parameters(), lr=3e-3)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=12)
    loader = DataLoader(dataset, sampler=sampler, batch_size=10)
    watch = Watch(ddp_net, opt)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in watch(loader):
            opt.zero_grad(set_to_none=True)
            nn.functional.mse_loss(ddp_net(x), y).backward()
            opt.step()
    watch.report()
    if rank == 0:
        torch.save(net.state_dict(), "net.pth")
    dist.destroy_process_group()


mp.start_processes(train, args=(2, os.environ["MASTER_PORT"]), nprocs=2, start_method="fork")
