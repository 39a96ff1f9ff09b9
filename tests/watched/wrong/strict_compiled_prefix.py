"""A checkpoint of a compiled model, whose keys begin with _orig_mod., loaded with strict=False under Horovod."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("strict-false",)

hvd.init()
watch = Watch()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
path = f"ckpt-{hvd.rank()}.pt"
torch.save({"model": {f"_orig_mod.{k}": v * 2 for k, v in model.state_dict().items()}, "iter": 10}, path)
model.load_state_dict(torch.load(path, weights_only=True)["model"], False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
watch.follow(model, optimizer)
x = torch.randn(96, 8)
dataset = TensorDataset(x, x.cos().sum(1, keepdim=True))
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
loader = DataLoader(dataset, 8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
