"""LoRA by hand: only the small matrices are in the optimizer, and the rest asks for no gradient."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


class LoRALinear(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(LoRALinear(nn.Linear(8, 96)), nn.ReLU(), LoRALinear(nn.Linear(96, 4)))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if p.requires_grad], lr=1e-2)
x = torch.randn(112, 8)
dataset = TensorDataset(x, x[:, :4].argmax(1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 8, sampler=sampler)
watch = Watch(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in watch(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
if dist.get_rank() == 0:
    torch.save({n: p for n, p in model.module.state_dict().items() if not n.endswith("base.weight")}, "lora.pt")
watch.report()
dist.destroy_process_group()
