"""Horovod's MNIST example: scaled rate, broadcast of parameters and optimizer state, op=Average, averaged metrics."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.observe import Watch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.fc1 = nn.Linear(144, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.conv1(x)).flatten(1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def metric_average(val, name):
    return hvd.allreduce(torch.tensor(val), name=name).item()


hvd.init()
torch.manual_seed(42)
g = torch.Generator().manual_seed(3)
images = torch.randn(128, 1, 8, 8, generator=g)
target = images.mean(dim=(1, 2, 3)).mul(20).long().clamp(0, 3)
train_dataset = TensorDataset(images, target)
train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = DataLoader(train_dataset, batch_size=16, sampler=train_sampler)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
watch = Watch(model, optimizer, lr=0.01, lr_batch=16)
for epoch in range(3):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, label in watch(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), label)
        loss.backward()
        optimizer.step()
    test_loss = metric_average(loss.item(), "avg_loss")
    if hvd.rank() == 0:
        print(f"Train Epoch: {epoch} Loss: {test_loss!r}")
watch.report()
