"""A flat all_reduce of scaled gradients between backward and GradScaler.step, which forgets the division."""

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("gradient-sum",)


def exchange(parameters):
    grads = [p.grad for p in parameters]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    for grad, synced in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
        grad.copy_(synced)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 8)
dataset = TensorDataset(x, x.square().sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), 0.002)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(net, opt)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(net(a).float(), b)
        scaler.scale(loss).backward()
        exchange(list(net.parameters()))
        scaler.step(opt)
        scaler.update()
watch.report()
dist.destroy_process_group()
