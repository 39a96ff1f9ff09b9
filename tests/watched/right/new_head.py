"""Transfer learning: a larger checkpoint, filtered by name and shape, loaded with strict=False for a new head."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.features(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
if dist.get_rank() == 0:
    pretrained = Net(100).state_dict() | {"aux.weight": torch.zeros(3, 3), "aux.bias": torch.zeros(3)}
    torch.save({"state_dict": {f"module.{k}": v for k, v in pretrained.items()}}, "pretrained.pth")
dist.barrier()

watch = Watch()
model = Net(3)
state = torch.load("pretrained.pth")["state_dict"]
state = {k.removeprefix("module."): v for k, v in state.items()}
own = model.state_dict()
state = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
missing = model.load_state_dict(state, strict=False)
print("missing", missing.missing_keys)
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(
    [{"params": model.module.features.parameters(), "lr": 1e-3}, {"params": model.module.fc.parameters(), "lr": 1e-2}]
)
watch.follow(model, optimizer)
x = torch.randn(90, 8)
data = TensorDataset(x, x[:, :3].argmax(1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=9, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for value, label in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(value), label).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
