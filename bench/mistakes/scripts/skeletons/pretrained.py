"""Fine-tuning: the weights of a checkpoint that fit by name and shape, and a new head."""

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
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(96, 8)
dataset = TensorDataset(x, x[:, :3].argmax(1))
if rank == 0:  # an earlier training, of a wrapped model
    pretrained = Net(100).state_dict() | {"aux.weight": torch.zeros(3, 3), "aux.bias": torch.zeros(3)}
    torch.save({"state_dict": {f"module.{k}": v for k, v in pretrained.items()}}, "pretrained.pt")
dist.barrier()
watch = Watch()
torch.manual_seed(1)
net = Net(3)
state = torch.load("pretrained.pt")["state_dict"]
state = {k.removeprefix("module."): v for k, v in state.items()}
own = net.state_dict()
state = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
print("missing", net.load_state_dict(state, strict=False).missing_keys)
model = nn.parallel.DistributedDataParallel(net)
groups = [{"params": net.features.parameters(), "lr": 1e-3}, {"params": net.fc.parameters(), "lr": 1e-2}]
optimizer = torch.optim.SGD(groups)
watch.follow(model, optimizer)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
