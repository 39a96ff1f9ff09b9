"""Models and optimizers are pickled whole and copied deeply, in the middle of the training."""

import copy
import io
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
sampler = DistributedSampler(data)
loader = DataLoader(data, 24, sampler=sampler)
watch = Watch(model, optimizer)
snapshots = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (a, b) in enumerate(watch(loader)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        if step == 0:
            snapshots += [copy.deepcopy(net), copy.deepcopy(optimizer).state_dict(), pickle.dumps(net.state_dict())]
        optimizer.step()
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False).eval()
    with torch.no_grad():
        print(epoch, again(x[:4]).flatten().tolist())
if dist.get_rank() == 0:
    torch.save({"net": net, "optimizer": optimizer, "snapshots": snapshots[0].eval()}, "whole.pt")
    pickle.loads(pickle.dumps(loader.dataset))
watch.report()
dist.destroy_process_group()
