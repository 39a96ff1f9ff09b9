"""OneCycleLR stepped with every batch, its peak scaled with the ranks."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

EPOCHS, BASE_LR, BASE_BATCH = 3, 0.04, 32

dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.rand(144, 13)
ds = TensorDataset(x, (x.sum(1) > 6.5).float())
net = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(13, 96), torch.nn.Hardswish(), torch.nn.Linear(96, 1))
)
sampler = DistributedSampler(ds)
dl = DataLoader(ds, 12, sampler=sampler)
peak = BASE_LR * 12 * dist.get_world_size() / BASE_BATCH
opt = torch.optim.SGD(net.parameters(), lr=peak)
cycle = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=peak, epochs=EPOCHS, steps_per_epoch=len(dl))
watch = Watch(net, opt, lr=BASE_LR, lr_batch=BASE_BATCH)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for xb, yb in watch(dl):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(xb).squeeze(1), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
        cycle.step()
watch.report()
dist.destroy_process_group()
