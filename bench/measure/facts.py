"""What a run really did, read from its live objects and not from what was asked for.

The parity certificate is made from these.
"""

from collections import Counter

import torch
from torch import nn


def collect_facts(config, mode, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """One flat, JSON-able dict. model, optimizer: as the loop uses them. ``learning_rate`` is that of the next step."""
    plain, group = mode.unwrap(model), optimizer.param_groups[0]
    return {
        "norm": norm_of(plain),
        "parameters": sum(p.numel() for p in plain.parameters()),
        "trained_parameters": sum(p.numel() for p in plain.parameters() if p.requires_grad),
        "parameter_dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in plain.parameters()})),
        "autocast": "bfloat16" if config.precision == "bf16" else "off",
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
