"""Whether a model fits at all: a lower bound, asked before it is moved to its device, so that one line says it."""

import torch
from torch import nn

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.measure import cgroup
from bench.modes.base import Mode


def require_room(config: RunConfig, mode: Mode, model: nn.Module) -> None:
    """Raise UserError where weights and gradients alone are more than a device has: on a GPU more than its memory, on a
    CPU the gradients that all processes of this machine add more than it has free. model: on the CPU."""
    weights = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    shards = 1 if mode.replicated else mode.topology.num_devices
    numbers = sum(p.numel() for p in model.parameters())
    words = f"MODEL={config.model} is too large: {numbers:,} parameters and their gradients take"
    if config.device == "cuda":
        have = torch.cuda.get_device_properties(mode.topology.device).total_memory
        needed = (weights + gradients) // shards
        if needed > have:
            raise UserError(f"{words} {needed / 2**30:.1f} GiB of a device that has {have / 2**30:.1f}")
        return
    import psutil

    processes = max(1, mode.topology.world_size // max(1, len(config.machines)))
    needed, free, allowed = processes * gradients // shards, psutil.virtual_memory().available, cgroup.memory_limit()
    if needed > (free := min(free, allowed or free)):
        raise UserError(
            f"{words} {2 * weights / 2**30:.1f} GiB in each of {processes} processes, and this machine has "
            f"{free / 2**30:.1f} GiB free for the gradients: use a smaller model or fewer GPUS"
        )
