"""The forum's idiom: keep what fits by name and shape, update the own dict, load it; nothing fits."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch

FINDS = ("strict-false",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 64), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


dist.init_process_group("gloo")
torch.manual_seed(0)
watch = Watch()
if dist.get_rank() == 0:
    torch.save({f"module.{k}": v for k, v in Net().state_dict().items()}, "pretrained.pth")
dist.barrier()
model = Net()
pretrained_dict = torch.load("pretrained.pth")
model_dict = model.state_dict()
pretrained_dict = {k: v for k, v in pretrained_dict.items() if k in model_dict and v.shape == model_dict[k].shape}
model_dict.update(pretrained_dict)
model.load_state_dict(model_dict)
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
watch.follow(model, optimizer)
x = torch.randn(84, 6)
dataset = TensorDataset(x, x[:, :3].argmax(1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 7, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
