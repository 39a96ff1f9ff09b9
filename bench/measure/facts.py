"""What a run really did, from its live objects: the source of the parity certificate.

Only facts that no object contains (a barrier every step, simulated storage, reductions after backward) come from the
options.
"""

from collections import Counter

import torch
from torch import nn

from bench.measure import waiting


def collect_facts(config, mode, trainer) -> dict:
    """A flat, JSON-able dict. ``lr`` is the schedule's highest."""
    plain, optimizer, autocast = mode.unwrap(trainer.model), trainer.optimizer, trainer.autocast
    group = optimizer.param_groups[0]
    return {
        "norm": norm_of(plain),
        "parameters": sum(p.numel() for p in plain.parameters()),
        "trained_parameters": sum(p.numel() for p in plain.parameters() if p.requires_grad),
        "parameter_dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in plain.parameters()})),
        "autocast": str(autocast.fast_dtype).removeprefix("torch.") if autocast._enabled else "off",
        "loss_scaling": trainer.scaler.is_enabled(),
        "memory_format": memory_format(plain, bool(config.channels_last)),
        "waiting_threads": waiting.in_this_process(),
        "recomputed_blocks": sum(getattr(module, "recomputed", False) for module in plain.modules()),
        "compiled": plain._compiled_call_impl is not None,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "optimizer": type(optimizer).__name__,
        "lr": group["lr"],
        "momentum": group.get("momentum"),
        "nesterov": group.get("nesterov"),
        "weight_decay": group["weight_decay"],
        "fused": bool(group.get("fused")),
        "schedule": schedule_of(config),
        "accumulate": config.accumulate,
        "clip_norm": config.clip_norm,
        "loss_guard": trainer.guard.factor if trainer.guard else None,
        "augment": config.augment,
        **({"optimizer_groups": groups_of(optimizer)} if len(optimizer.param_groups) > 1 else {}),
        **trainer.workload.facts(plain),
        **trainer.workload.flops,
        **mode.facts(optimizer),
        **({} if list(plain.buffers()) else {"buffers": "none"}),
        "overlap": config.overlap,
        "step_barrier": config.step_barrier,
        "item_sync": config.item_sync,
        "storage_ms": config.storage_ms,
    }


def groups_of(optimizer) -> str:
    """As in "2 parameters, weight_decay 0.1; 4 parameters, …"."""
    shown = ("lr_factor", "weight_decay", "momentum")
    return "; ".join(
        f"{sum(p.numel() for p in group['params'])} parameters"
        + "".join(f", {name} {group[name]:g}" for name in shown if isinstance(group.get(name), int | float))
        for group in optimizer.param_groups
    )


def memory_format(model: nn.Module, images_last: bool) -> str:
    weights = [p for p in model.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    weights_last = bool(weights) and all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    if images_last != weights_last:
        return "channels_last images, contiguous weights" if images_last else "contiguous images, channels_last weights"
    return "channels_last" if images_last else "contiguous"


def schedule_of(config) -> str:
    """As in "cosine, warm-up over 5 epochs"."""
    name, _, drops = config.schedule.partition(":")
    after = f"after epochs {drops.replace(',', ', ')}" if drops else f"every {config.schedule_epochs:g} epochs"
    settings = {"step": f" × {config.schedule_factor:g} {after}",
                "cyclic": f" {config.schedule_factor:g} to 1 every {config.schedule_epochs:g} epochs",
                "sawtooth": f" 1 to {config.schedule_factor:g} every {config.schedule_epochs:g} epochs"}  # fmt: skip
    text = name + settings.get(name, "")
    if config.lr_warmup_steps:
        return f"{text}, warm-up over {config.lr_warmup_steps} steps"
    return text + (f", warm-up over {config.lr_warmup_epochs:g} epochs" if config.lr_warmup_epochs else "")


def norm_of(model: nn.Module) -> str:
    """The norm layers by class: "BatchNorm2d × 20"; "none" without any. For a Keras model, Keras's layers."""
    layers = model.layers() if callable(getattr(model, "layers", None)) else model.modules()
    names = (type(layer).__name__.removeprefix("FSDP") for layer in layers)  # it renames what it shards
    kinds = Counter(name for name in names if "norm" in name.lower())
    return ", ".join(f"{kind} × {count}" for kind, count in sorted(kinds.items())) or "none"
