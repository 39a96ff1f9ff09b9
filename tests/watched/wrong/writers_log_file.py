"""One log file that all ranks append to, and a JSON with the history that all ranks write."""

import json

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("many-writers",)

dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.randn(112, 5)
dataset = TensorDataset(data, data.pow(3).sum(1, keepdim=True))
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1)))
adam = torch.optim.Adam(net.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 14, sampler=sampler)
watch = Watch(net, adam)
history = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        adam.zero_grad()
        loss = nn.functional.huber_loss(net(a), b)
        loss.backward()
        adam.step()
    history.append(loss.item())
    with open("train.log", "a") as log:
        log.write(f"{epoch} {history[-1]}\n")
with open("history.json", mode="w") as file:
    json.dump(history, file)
np.savetxt("history.csv", np.array(history))
watch.report()
dist.destroy_process_group()
