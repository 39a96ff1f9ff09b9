"""Freezing: which parameters are trained, and what a frozen module must keep from doing."""

import difflib
import fnmatch

from torch import nn

from bench.errors import UserError


def freeze_parameters(model: nn.Module, freeze: str | None, train_only: str | None) -> list[str]:
    """Stop training the parameters whose names match ``freeze``, or do not match ``train_only``; return their names.

    Both are patterns of the shell with commas between, ``conv1*,bn1*,layer1*``, and one of them is None.

    It must be done before a mode wraps the model. DDP looks at ``requires_grad`` once, at construction, puts what is to
    be trained into buckets, and sends a bucket when all of its gradients have come. The gradient of a parameter that
    was frozen later never comes: its bucket is never sent, and DDP's next forward raises. With
    ``find_unused_parameters=True`` it would not, but DDP then searches the graph for such parameters in each step,
    sends zeros for them, and a layer that was left out by mistake is no longer found.

    Raises UserError for a pattern that matches nothing, and when nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = matching("FREEZE", freeze, names) if freeze else set(names) - matching("TRAIN_ONLY", train_only, names)
    if len(frozen) == len(names):
        raise UserError(
            f"FREEZE={freeze or f'all but {train_only}'} leaves nothing to train: EVALUATE=1 only validates"
        )
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return [name for name in names if name in frozen]


def matching(option: str, patterns: str, names: list[str]) -> set[str]:
    """The names that match any of the patterns. Raises UserError for a pattern that matches none."""
    found = set()
    for pattern in (p.strip() for p in patterns.split(",")):
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise UserError(f"{option}: no parameter is called {pattern}: {near_names(pattern, names)}")
        found |= set(matches)
    return found


def near_names(pattern: str, names: list[str]) -> str:
    """A hint for a pattern that matches nothing: near modules as ``layer1.*``, or the top of the model."""
    modules = dict.fromkeys(name.rpartition(".")[0] for name in names)
    modules |= dict.fromkeys(name.partition(".")[0] for name in names)
    candidates = [f"{module}.*" for module in modules] + names
    near = difflib.get_close_matches(f"{pattern.rstrip('.*')}.*", candidates, n=3)
    top = dict.fromkeys(f"{name.partition('.')[0]}.*" for name in names)
    return f"did you mean {' or '.join(near)}?" if near else f"this model has {', '.join(top)}"


def train_mode(model: nn.Module) -> None:
    """``model.train()``, but a module whose parameters are all frozen stays in evaluation mode.

    Freezing parameters does not freeze buffers: a batch norm in training mode moves its running statistics at every
    forward pass, whether its parameters are trained or not, and normalises with the batch's. What is frozen must
    compute what it computed when it was trained, so it is left in evaluation mode, with the dropout inside it.

    Called instead of ``model.train()`` after every validation; it takes 1 ms for a resnet18, 7 ms for a vit_b_16.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
