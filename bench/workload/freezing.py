"""Freezing: which parameters are trained, and evaluation mode for frozen modules."""

import difflib
import fnmatch

from torch import nn

from bench.errors import UserError


def freeze_parameters(model: nn.Module, freeze: str | None, train_only: str | None) -> list[str]:
    """Freeze the parameters whose names match ``freeze``, or do not match ``train_only``; return their names.

    Both are shell patterns with commas between, ``conv1*,bn1*,layer1*``, and one of them is None. Call it before a mode
    wraps the model: DDP reads ``requires_grad`` once, at construction, to fill its buckets. A parameter frozen later
    never gets its gradient, its bucket is never sent, and DDP's next forward raises. With
    ``find_unused_parameters=True`` DDP would search the graph for it in each step, and no longer detect a layer that is
    unused by mistake. Raises UserError for a pattern that matches nothing, and if no parameter is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = matching("FREEZE", freeze, names) if freeze else set(names) - matching("FREEZE", train_only, names)
    if len(frozen) == len(names):
        raise UserError(
            f"FREEZE={freeze or f'all but {train_only}'} leaves no parameters to train: use EVALUATE=1 to validate only"
        )
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return [name for name in names if name in frozen]


def matching(option: str, patterns: str, names: list[str]) -> set[str]:
    found = set()
    for pattern in (p.strip() for p in patterns.split(",")):
        matches = fnmatch.filter(names, pattern)
        if not matches:
            top = dict.fromkeys(f"{name.partition('.')[0]}.*" for name in names)
            candidates = dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in names) | top | dict.fromkeys(names)
            near = difflib.get_close_matches(f"{pattern.rstrip('.*')}.*", candidates, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"this model has {', '.join(top)}"
            raise UserError(f"{option}: no parameter matches {pattern}: {hint}")
        found |= set(matches)
    return found


def train_mode(model: nn.Module) -> None:
    """``model.train()``, but a module whose parameters are all frozen stays in evaluation mode.

    A batch norm in training mode updates its running statistics and normalises with the batch's even if its parameters
    are frozen; a frozen module must compute the same as after its training.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
