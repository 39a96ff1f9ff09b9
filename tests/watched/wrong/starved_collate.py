"""One worker, and a collate function that tokenises for a long time."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from bench.observe import Watch

FINDS = ("loader-starvation",)

TEXTS = [f"the {n}th sentence of a corpus" for n in range(48)]


def collate(texts):
    time.sleep(0.1)
    ids = torch.tensor([[ord(c) % 32 for c in text[:20].ljust(20)] for text in texts])
    return {"input_ids": ids}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)))
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = DistributedSampler(TEXTS)
    loader = DataLoader(TEXTS, 2, sampler=sampler, collate_fn=collate, num_workers=1)
    watch = Watch(model, optimizer)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in watch(loader):
            logits = model(batch["input_ids"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten()).backward()
            optimizer.step()
    watch.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
