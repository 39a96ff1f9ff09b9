"""Post-local SGD by torch's own averager: all gradients are exchanged at first, later the weights now and then."""

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

ASKS = ("drift",)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=4)
model.register_comm_hook(state, post_localSGD_hook)
optimizer = PostLocalSGDOptimizer(
    optim=torch.optim.SGD(model.parameters(), lr=0.03),
    averager=averagers.PeriodicModelAverager(period=3, warmup_steps=4),
)
x = torch.randn(130, 6)
data = TensorDataset(x, x[:, :1])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=5, sampler=sampler)
watch = Watch(model, optimizer.optim)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
