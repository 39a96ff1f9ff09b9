"""What a run really did: the parity certificate's source.

Read from the live objects wherever one can say it: model, optimizer, autocast, the mode's wrapper. Only what no object
holds (a barrier every step, a simulated storage, reductions after backward) is the option on which the code acted.
"""

from collections import Counter

import torch
from torch import nn


def collect_facts(config, mode, model: nn.Module, optimizer: torch.optim.Optimizer, autocast: torch.autocast) -> dict:
    """One flat, JSON-able dict. model, optimizer, autocast: as the loop uses them. ``lr`` is that of the next step."""
    plain, group = mode.unwrap(model), optimizer.param_groups[0]
    return {
        "norm": norm_of(plain),
        "parameters": sum(p.numel() for p in plain.parameters()),
        "trained_parameters": sum(p.numel() for p in plain.parameters() if p.requires_grad),
        "parameter_dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in plain.parameters()})),
        "autocast": str(autocast.fast_dtype).removeprefix("torch.") if autocast._enabled else "off",
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "optimizer": type(optimizer).__name__,
        "lr": group["lr"],
        "momentum": group.get("momentum"),
        "weight_decay": group["weight_decay"],
        **mode.facts(optimizer),
        "overlap": config.overlap,
        "step_barrier": config.step_barrier,
        "item_sync": config.item_sync,
        "storage_ms": config.storage_ms,
    }


def norm_of(model: nn.Module) -> str:
    """The normalising layers by class: "BatchNorm2d × 20"; "none" without any."""
    kinds = Counter(type(m).__name__ for m in model.modules() if "norm" in type(m).__name__.lower())
    return ", ".join(f"{kind} × {count}" for kind, count in sorted(kinds.items())) or "none"
