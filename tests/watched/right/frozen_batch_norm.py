"""Detection style: batch norm over two images stays in evaluation mode, with a pretrained file's statistics."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3)
        )
        self.head = nn.Conv2d(32, 5, 1)

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
                module.weight.requires_grad_(False)
                module.bias.requires_grad_(False)
        return self

    def forward(self, x):
        return self.head(self.backbone(x).relu())


dist.init_process_group("gloo")
torch.manual_seed(2)
model = Detector().train()
model = nn.parallel.DistributedDataParallel(model)
images = torch.randn(32, 3, 16, 16)
data = TensorDataset(images, images[:, :, 1:-1, 1:-1].mean(1, keepdim=True).repeat(1, 5, 1, 1))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=2, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for image, target in watch(loader):
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(model(image), target).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
