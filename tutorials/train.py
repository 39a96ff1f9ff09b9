"""A DDP training script to copy and change: torchrun --standalone --nproc-per-node=2 train.py [--cpu] [--resume]

It needs only torch and NumPy. Replace `Digits`, `make_model` and the loss; keep the rest.
"""

import argparse
import contextlib
import faulthandler
import itertools
import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset


def start(cpu: bool) -> torch.device:
    """Join the other processes. Without --cpu there is no fallback to the CPU: nobody would notice it for hours."""
    if "LOCAL_RANK" not in os.environ:
        raise RuntimeError("LOCAL_RANK is not set: start with torchrun --standalone --nproc-per-node=2 train.py")
    if cpu:
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= gpus:
        raise RuntimeError(f"LOCAL_RANK={local_rank}, but {gpus} GPUs are visible: start fewer processes, or use --cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)  # before init and the first tensor: until then "cuda" means GPU 0 on every rank
    dist.init_process_group("nccl", device_id=device)  # connects now, so that a wrong set-up fails here
    return device


def set_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # the GPU's generator as well


class Digits(Dataset):
    """Ten patterns of 8 × 8 pixels with noise, in place of files. Training images are shifted and scaled at random."""

    def __init__(self, count: int, seed: int, augment: bool):
        patterns = torch.randn(10, 8, 8, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(10, (count,), generator=generator)
        self.images = patterns[self.labels] + 1.5 * torch.randn(count, 8, 8, generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.augment:
            image = image.roll(random.choice((0, 0, 0, 1)), dims=1) * float(np.random.uniform(0.8, 1.2))
        return image, self.labels[index]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))


def make_loaders(args, device: torch.device) -> tuple[DataLoader, DataLoader]:
    train_set, val_set = Digits(1999, 1, augment=True), Digits(517, 2, augment=False)
    # From pinned (page-locked) memory `to(device, non_blocking=True)` does not wait for the end of the copy.
    # No persistent_workers: new workers get new seeds in each epoch, from a generator that the checkpoint contains.
    options = {"batch_size": args.batch, "num_workers": args.workers, "pin_memory": device.type == "cuda"}
    train_loader = DataLoader(train_set, sampler=DistributedSampler(train_set, seed=args.seed), **options)
    # Each validation example on one rank: DistributedSampler would repeat some to give all ranks equally many.
    own = Subset(val_set, range(dist.get_rank(), len(val_set), dist.get_world_size()))
    return train_loader, DataLoader(own, generator=torch.Generator(), **options)  # leaves training's generator alone


def windows(loader, size: int):
    """Lists of ``size`` batches, each list for one optimizer step; the last may be shorter."""
    batches = iter(loader)
    while window := list(itertools.islice(batches, size)):
        yield window


def train_epoch(model, loader, optimizer, scheduler, scaler, accumulate, dtype, device) -> torch.Tensor:
    """Returns this rank's sum of losses and number of examples."""
    model.train()
    totals = torch.zeros(2, device=device, dtype=torch.float64)  # on the device: no step waits for a number
    for window in windows(loader, accumulate):
        # All ranks have equally many examples here, because the sampler pads. If not, or to count tokens: all-reduce
        # the number, divide by the sum and multiply by the number of ranks, because DDP averages over ranks.
        examples = sum(len(labels) for _, labels in window)
        for number, (images, labels) in enumerate(window, 1):
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            # Only the window's last backward pass all-reduces gradients. no_sync must enclose the forward pass, too.
            with contextlib.nullcontext() if number == len(window) else model.no_sync():
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    loss = nn.functional.cross_entropy(model(images), labels, reduction="sum")
                scaler.scale(loss / examples).backward()
            totals[0] += loss.detach()
            totals[1] += len(labels)
        scaler.unscale_(optimizer)  # before clipping, which needs the norm of the true gradients
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # equal on all ranks, because the gradients are
        scaler.step(optimizer)  # skipped, on all ranks together, if a gradient is inf or nan
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    return totals


@torch.no_grad()
def evaluate(model, loader, dtype, device) -> torch.Tensor:
    """Returns this rank's sum of losses, number right and number of examples. model: not in DDP, so nothing is sent."""
    model.eval()
    totals = torch.zeros(3, device=device, dtype=torch.float64)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            outputs = model(images)
        totals[0] += nn.functional.cross_entropy(outputs.float(), labels, reduction="sum")
        totals[1] += (outputs.argmax(1) == labels).sum()
        totals[2] += len(labels)
    return totals


def generator_states(device: torch.device) -> dict:
    name, keys, *rest = np.random.get_state()  # keys as a list, because torch.load(weights_only=True) reads no array
    states = {"torch": torch.get_rng_state(), "random": random.getstate(), "numpy": (name, keys.tolist(), *rest)}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_generators(states: dict, device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    np.random.set_state(states["numpy"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def save(path: Path, epoch: int, parts: dict, device: torch.device) -> None:
    """Call it on all ranks; rank 0 writes. After a crash at any moment the file is the old or the new one, complete."""
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, generator_states(device))
    if dist.get_rank() == 0:
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save({"epoch": epoch, "generators": states, **{k: v.state_dict() for k, v in parts.items()}}, file)
            file.flush()
            os.fsync(file.fileno())  # the data is on the disk before the name is
        os.replace(temporary, path)
    dist.barrier()  # no rank continues, or ends, before the file is there


def load(path: Path, parts: dict, device: torch.device) -> int:
    """Returns the finished epochs, 0 without a file. Bit for bit if ranks are as many and kernels deterministic."""
    saved = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else {"epoch": 0}
    rank, size = dist.get_rank(), dist.get_world_size()
    epochs = [None] * size
    dist.all_gather_object(epochs, saved["epoch"])
    if len(set(epochs)) > 1:
        raise RuntimeError(f"the ranks read checkpoints of epochs {epochs}: {path} must be on a shared file system")
    if saved["epoch"] == 0:
        return 0
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    if len(saved["generators"]) == size:
        set_generators(saved["generators"][rank], device)
    elif rank == 0:
        print(f"{len(saved['generators'])} ranks saved, {size} resume: the random numbers will differ", flush=True)
    return saved["epoch"]


@record  # torchrun then prints the traceback of the rank that failed first
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="examples per rank and backward pass")
    parser.add_argument("--accumulate", type=int, default=2, help="backward passes per optimizer step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint, if there is one")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1 PID` prints the stack of a rank that hangs

    device = start(args.cpu)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.precision]
    set_seeds(args.seed)  # equal on all ranks: the first weights
    model = make_model().to(device)
    set_seeds(args.seed + dist.get_rank())  # another on each rank: dropout and augmentation
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))  # warm-up
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")  # bf16 has the range of fp32
    train_loader, val_loader = make_loaders(args, device)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    done = load(args.checkpoint, parts, device) if args.resume else 0
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    for epoch in range(done + 1, args.epochs + 1):
        train_loader.sampler.set_epoch(epoch)
        trained = train_epoch(ddp, train_loader, optimizer, scheduler, scaler, args.accumulate, dtype, device)
        totals = torch.cat([trained, evaluate(model, val_loader, dtype, device)])
        dist.all_reduce(totals)  # on every rank: sums over all ranks, which are then divided
        loss, images, val_loss, right, count = totals.tolist()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: training loss {loss / images:.4f}, validation loss {val_loss / count:.6f}, "
                  f"accuracy {right / count:.4f} of {count:.0f} images", flush=True)  # fmt: skip
        save(args.checkpoint, epoch, parts, device)
    dist.destroy_process_group()  # not in a `finally`: after an error it could wait for the other ranks


if __name__ == "__main__":
    main()
