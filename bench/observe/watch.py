"""A Watch attaches to any training script, and says which of the known mistakes it makes.

    from bench.observe import Watch

    watch = Watch(model, optimizer)            # once both are wrapped: one process, DataParallel, DDP or Horovod
    for epoch in range(epochs):
        for images, labels in watch(loader):   # every epoch
            ...
    watch.report()                             # on every rank; rank 0 prints

The training stays bit-identical. The ranks speak to each other in ``report`` alone.
"""

import statistics
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from bench import mistakes
from bench.errors import UserError
from bench.mistakes import Finding
from bench.modes import collectives
from bench.observe.draws import LoaderWatch, augmentation, can_be_recorded
from bench.observe.observer import put_together
from bench.observe.probes import GradientProbe, HostSyncs, Loads, Writers, batch_norms, norm_of, state_of

COUNTED_STEPS = 20  # in which waits for the device are counted
TIMED_STEPS = 10_000


class Watch:
    """Beside one process of a script.

    model, optimizer: as the script uses them, wrapped; ``follow`` takes them later, for a Watch that is made at the top
    of a script to see what it loads. lr, lr_batch: the recipe's learning rate, and the global batch that it is for.
    """

    def __init__(
        self, model: nn.Module | None = None, optimizer=None, lr: float | None = None, lr_batch: int | None = None
    ):
        self.recipe = {"lr": lr, "lr_batch": lr_batch} if lr is not None and lr_batch is not None else None
        self.writers, self.loads = Writers(), Loads()
        self.model = self.waits = self.gradient = self.loader = self.begun = None
        self.stream = self.labels = self.norms = None
        self.reported, self.shares, self.hooks = {}, [], []
        self.images = self.batches = self.optimizer_steps = self.workers = self.depth = 0
        self.peak_lr = 0.0
        if model is not None:
            self.follow(model, optimizer)

    def follow(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Watch these from now on. Raises UserError for a model whose parameters are sharded."""
        if any(type(p).__name__ == "DTensor" for p in model.parameters()) or "FullySharded" in type(model).__name__:
            raise UserError("Watch compares replicas, and this model is sharded: no rank holds all of its parameters")
        self.model, self.optimizer = model, optimizer
        self.gradient = GradientProbe(model.parameters())
        self.hooks = [
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
        ]

    def before_step(self, optimizer, arguments, options) -> None:
        """Called when the optimizer's step begins. Horovod steps twice: the inner has final gradients."""
        self.depth += 1
        if self.gradient.hooks:
            self.gradient.look()
        self.peak_lr = max(self.peak_lr, *(float(group["lr"]) for group in optimizer.param_groups))

    def after_step(self, optimizer, arguments, options) -> None:
        """Called when the step has been taken."""
        self.depth -= 1
        self.optimizer_steps += self.depth == 0
        self.gradient.close()

    def __call__(self, loader) -> Iterator:
        """The loader's batches: one epoch."""
        self.begin(loader)
        taken, whole = 0, False
        try:
            for batch in self.waits.steps_of(self.timed(loader)):
                taken += 1
                yield batch
                self.stepped(batch)
            whole = True
        finally:
            if self.loader and self.loader.loader is loader:
                self.loader.epoch_ended(taken, whole)

    def begin(self, loader) -> None:
        """An epoch begins; before the first one, everything has its state from the start."""
        if self.model is None:
            raise UserError("Watch: call follow(model, optimizer) before the first epoch")
        if self.begun is not None:
            return
        self.begun = state_of(self.model)
        self.waits = HostSyncs(any(p.is_cuda for p in self.model.parameters()))
        self.workers = getattr(loader, "num_workers", 0)
        if can_be_recorded(loader):
            self.stream, self.labels = augmentation(loader)
            self.loader = LoaderWatch(loader, engine()[1])

    def timed(self, loader) -> Iterator:
        """The batches, with the share of each step that was spent waiting for its batch."""
        asked = time.perf_counter()
        for batch in loader:
            got = time.perf_counter()
            yield batch
            now = time.perf_counter()
            if len(self.shares) < TIMED_STEPS:
                self.shares.append((got - asked) / (now - asked))
            asked = now

    def stepped(self, batch) -> None:
        """A batch has been trained on."""
        self.batches += 1
        if self.norms is None:  # now the model is in training mode
            self.images, self.norms = length_of(batch), batch_norms(self.model)
        if self.waits.steps == COUNTED_STEPS:
            self.waits.close()

    def metric(self, **values) -> None:
        """After each epoch: what this rank would print, as in ``metric(top1=0.93, images=10000, val_images=10000)``.
        images: that were counted for it; val_images: of the whole validation set."""
        for name, value in values.items():
            if name == "val_images":
                self.reported[name] = int(value)
            else:
                self.reported.setdefault(name, []).append(int(value) if name == "images" else float(value))

    def report(self) -> list[Finding]:
        """Put together what the ranks saw: every rank calls it. Rank 0 prints the findings, all return them."""
        rank, _, gather = engine()
        parts = gather(self.part())
        known = {"num_devices": len(parts) * self.devices, "exchanges": True, "trains": True}
        observed = put_together(parts, known)
        findings = mistakes.find(observed)
        if rank == 0:
            print(f"known mistakes found: {len(findings)}")
            for finding in findings:
                print("\n".join(finding.lines()))
            if unseen := mistakes.unobserved(observed):
                print(f"not observed: {', '.join(unseen)}", flush=True)
        return findings

    @property
    def devices(self) -> int:
        """Devices of this process."""
        return len(getattr(self.model, "device_ids", None) or [0])

    def part(self) -> dict:
        """This rank's part; everything is taken down."""
        for probe in (self.writers, self.loads, self.waits, self.gradient, self.loader):
            if probe:
                probe.close()
        for hook in self.hooks:
            hook.remove()
        seen = {"writers": self.writers.result(), "loads": self.loads.result(), "reported": self.reported or None}
        if self.begun is None:
            return seen
        gradient = self.gradient.result()
        per_step = self.images * max(1, round(self.batches / max(1, self.optimizer_steps)))
        return seen | {
            "start": self.begun,
            "end": state_of(self.model),
            "data": self.loader and self.loader.result(self.labels),
            "augmentation": self.stream,
            "norm": norm_of(self.norms, self.images // self.devices) if self.norms is not None else None,
            "gradient": gradient and gradient | {"kind": kind_of(self.model, self.optimizer)},
            "learning_rate": self.recipe and self.recipe | {"used": self.peak_lr, "images": per_step},
            "host_syncs": self.waits.result(),
            "loader": {"wait_share": statistics.median(self.shares), "workers": self.workers} if self.shares else None,
        }


def engine() -> tuple:
    """Rank, number of ranks, and a function that gathers an item of every rank, of what is initialised here."""
    horovod = sys.modules.get("horovod.torch")
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), collectives.gather
    if horovod and horovod.is_initialized():
        return horovod.rank(), horovod.size(), horovod.allgather_object
    return 0, 1, lambda item: [item]


def kind_of(model: nn.Module, optimizer) -> str:
    """How gradients are exchanged: "mean" but for what is known to be none."""
    horovod = sys.modules.get("horovod.torch")
    if horovod and (getattr(optimizer, "op", None) is horovod.Adasum or hasattr(optimizer, "_starting_models")):
        return "Adasum"
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", [])]  # DDP's; torch's name for it is its own
    return "PowerSGD" if any("power" in getattr(hook, "__name__", "").lower() for hook in hooks) else "mean"


def length_of(batch) -> int:
    """Examples in a batch: the length of the first tensor in it; 0 without one."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((length for item in items if (length := length_of(item))), 0)
