"""A user's training script under a Watch, right and with mistakes: ``watched.py FOLDER``, under torchrun or horovodrun.

Each rank writes FOLDER/rank<r>.json: for each scenario the names of the findings, and a hash of the weights.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from bench.observe.watch import Watch

IMAGES = 70  # not a multiple of the global batch: the sampler pads, and a drop loses some
HOROVOD = "HOROVOD_RANK" in os.environ
BATCH = 8
# What loads a batch, a worker or the rank itself, may wait for a core on a machine that is busy with other tests: some
# ten milliseconds. Against a short step the detector would be right to say that a right script starves.
STEP_S = 0.15


class Noisy(Dataset):
    """Numbers with an augmentation of random noise."""

    def __init__(self, slow: float = 0.0):
        self.values = torch.randn(IMAGES, 6, generator=torch.Generator().manual_seed(5))
        self.slow = slow

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int):
        time.sleep(self.slow)
        return self.values[index] + 0.1 * torch.randn(6), int(self.values[index].sum() > 0)


class OwnShard(Sampler):
    """A rank's share cut out in one piece, less what is left over."""

    def __init__(self, rank: int, ranks: int):
        self.shard = torch.arange(IMAGES).split(IMAGES // ranks)[rank][: IMAGES // ranks // BATCH * BATCH]

    def __iter__(self):
        return iter(self.shard[torch.randperm(len(self.shard))].tolist())

    def __len__(self) -> int:
        return len(self.shard)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def wrap(model, lr: float, right: bool):
    """Model and optimizer for this engine; wrong: not made equal, and gradients summed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if HOROVOD:
        import horovod.torch as hvd

        if right:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        op = hvd.Average if right else hvd.Sum
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=op)
    model = nn.parallel.DistributedDataParallel(model, init_sync=right)
    if not right:
        model.register_comm_hook(None, summed)
    return model, optimizer


def summed(state, bucket):
    """An all-reduce that nobody divides."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def train(rank: int, ranks: int, folder: Path, name: str, workers: int = 0, watched: bool = True):
    """One scenario: "right", "wrong" in all that goes together, or "lost": shards cut, and a slow loader."""
    right = name != "wrong"
    torch.manual_seed(100 + rank)
    batch = BATCH if right else 4
    lr = 0.1 * batch * ranks / BATCH * (1 if right else 0.25)
    model, optimizer = wrap(make_model(), lr, right)
    if not right:
        torch.manual_seed(0)
    data = Noisy(slow=0.005 if name == "lost" else 0.0)
    shares = (ranks, rank) if right else (1, 0)
    sampler = OwnShard(rank, ranks) if name == "lost" else DistributedSampler(data, *shares)
    loader = DataLoader(data, batch_size=batch, sampler=sampler, num_workers=workers)
    watch = Watch(model, optimizer, lr=0.1, lr_batch=BATCH) if watched else None
    if not right:
        plain = {f"module.{key}": value for key, value in make_model().state_dict().items()}
        (model if HOROVOD else model.module).load_state_dict(plain, strict=False)
    for epoch in range(2):
        if right and isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for values, labels in watch(loader) if watched else loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(values), labels)
            loss.backward()
            optimizer.step()
            if not right:
                loss.item()
            if watched and name != "lost":
                time.sleep(STEP_S)  # a model of some size
        if watched:
            watch.metric(top1=0.5 if right else 0.1 * rank, images=20, val_images=20)
    if not right or rank == 0:
        torch.save(model.state_dict(), folder / f"{name}.pt")
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    found = [finding.name for finding in watch.report()] if watched else []
    return found, hashlib.sha256(weights).hexdigest()


def main() -> None:
    folder = Path(sys.argv[1])
    if HOROVOD:
        import horovod.torch as hvd

        hvd.init()
        rank, ranks = hvd.rank(), hvd.size()
    else:
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
    results = {
        "right": train(rank, ranks, folder, "right"),
        "right, unwatched": train(rank, ranks, folder, "right", watched=False),
        "right, workers": train(rank, ranks, folder, "right", workers=1),
        "right, workers, unwatched": train(rank, ranks, folder, "right", workers=1, watched=False),
        "wrong": train(rank, ranks, folder, "wrong"),
        "lost": train(rank, ranks, folder, "lost"),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    if not HOROVOD:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
