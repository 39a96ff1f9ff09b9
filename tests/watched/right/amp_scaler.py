"""Automatic mixed precision with GradScaler: scale, unscale_, clip, step, update; the first steps overflow."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch

dist.init_process_group("gloo")
torch.manual_seed(11)
x = torch.randn(160, 10)
data = TensorDataset(x, x.pow(2).sum(1, keepdim=True))
net = DistributedDataParallel(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)))
opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
watch = Watch(net, opt)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, target in watch(loader):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = net(inputs)
            loss = nn.functional.mse_loss(output.float(), target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
if dist.get_rank() == 0:
    print("scale", scaler.get_scale(), "loss", loss.item())
watch.report()
dist.destroy_process_group()
