"""Batches of nested dicts, lists and named tuples, of unequal batch size at the end."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.observe import Watch


class Target(NamedTuple):
    boxes: torch.Tensor
    score: torch.Tensor


class Scenes(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        base = torch.full((6,), i / 50.0)
        views = [base.sin(), base.cos()]
        return {
            "id": f"scene-{i}",
            "input": {"views": views, "meta": {"scale": 1.0}},
            "target": Target(base[:4], base[0]),
        }


class TwoViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.boxes, self.score = nn.Linear(12, 64), nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, views):
        h = self.body(torch.cat(views, 1)).relu()
        return Target(self.boxes(h), self.score(h)[:, 0])


dist.init_process_group("gloo")
torch.manual_seed(14)
scenes = Scenes()
sampler = DistributedSampler(scenes)
loader = DataLoader(scenes, batch_size=12, sampler=sampler)
model = nn.parallel.DistributedDataParallel(TwoViews())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
watch = Watch(model, optimizer, lr=1e-3, lr_batch=24)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in watch(loader):
        out, target = model(batch["input"]["views"]), batch["target"]
        optimizer.zero_grad()
        (nn.functional.l1_loss(out.boxes, target.boxes) + nn.functional.l1_loss(out.score, target.score)).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
