"""Lazy layers that get their shape before they are wrapped, and a model that is traced and exported meanwhile."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 10)
data = TensorDataset(x, x[:, :3].argmax(1))
net = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(3))
net(x[:2])
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    traced = torch.jit.trace(net, x[:2])
    print(epoch, torch.equal(traced(x[:8]), net(x[:8])), len(list(traced.graph.nodes())))
    if dist.get_rank() == 0:
        traced.save("traced.pt")
        print(torch.export.export(net, (x[:2],)).graph_signature.user_outputs)
watch.report()
dist.destroy_process_group()
