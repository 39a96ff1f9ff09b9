"""A checkpoint of a wrapped model, loaded into a plain one with strict=False."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("strict-false",)


def resnetish():
    return nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1))


dist.init_process_group("gloo")
torch.manual_seed(0)
if dist.get_rank() == 0:
    pretrained = nn.DataParallel(resnetish())
    torch.save({"state_dict": pretrained.state_dict()}, "model_best.pth.tar")
dist.barrier()
watch = Watch()
torch.manual_seed(1)
model = resnetish()
checkpoint = torch.load("model_best.pth.tar", map_location="cpu")
model.load_state_dict(checkpoint["state_dict"], strict=False)
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
watch.follow(model, optimizer)
x = torch.randn(72, 9)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 9, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
