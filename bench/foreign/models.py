"""The models that a process trains: found among all its objects, and heard when they are called to be evaluated."""

import contextlib
import gc
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bench.observe.gradients import is_horovod
from bench.observe.listening import skipped, uncompiled
from bench.structure import parameters_of


def find(optimizers: list[Optimizer]) -> list[nn.Module]:
    """The outermost modules that hold what the optimizers train, in the order of the optimizers' parameters, which is
    the same on all ranks. Raises LookupError where there is none."""
    place = {}
    for optimizer in optimizers:
        for parameter in parameters_of(optimizer):
            place.setdefault(id(parameter), len(place))
    first = {}  # id of a module -> the place of the first of its parameters, and the module
    for item in gc.get_objects():
        if issubclass(type(item), nn.Module):
            with contextlib.suppress(Exception):  # one that is being made in another thread
                if held := [place[id(p)] for p in item.parameters() if id(p) in place]:
                    first[id(item)] = min(held), item
    within = {id(child) for _, module in first.values() for child in module.modules() if child is not module}
    roots = [pair for key, pair in first.items() if key not in within]
    if not roots:
        raise LookupError("no torch.nn.Module holds what the optimizers train")
    return [module for _, module in sorted(roots, key=lambda pair: pair[0])]


def engine_of(models: list[nn.Module], optimizers: list[Optimizer], world_size: int) -> str:
    """How the ranks exchange gradients, as far as it can be seen. world_size: 0 where it is not known."""
    modules = [module for model in models for module in model.modules()]
    if any(map(is_horovod, optimizers)):
        return "Horovod"
    if any(isinstance(module, DistributedDataParallel) for module in modules):
        return "DistributedDataParallel"
    if any(isinstance(module, nn.DataParallel) and len(module.device_ids or ()) > 1 for module in modules):
        return "DataParallel"
    return "one process" if world_size == 1 else "not known"


# --- evaluations ----------------------------------------------------------------------------------------------------

listeners: dict[int, Callable[[], None]] = {}  # id of a module -> what is called when it is evaluated


def note(module: nn.Module) -> None:
    listener = listeners.get(id(module))
    if listener and not (module.training and torch.is_grad_enabled()):
        listener()


def hear_evaluations(models: list[nn.Module], listener: Callable[[], None]) -> Callable[[], None]:
    """Have ``listener`` called when one of the models, or the one that it wraps, is called in evaluation mode or
    without gradients. Returns what ends it. The modules can still be copied and pickled: their classes get a
    ``__call__``."""
    global note
    note = uncompiled(note)
    modules = [module for model in models for module in wrapped(model)]
    listeners.update(dict.fromkeys(map(id, modules), listener))
    ends = [end for kind in {type(module) for module in modules} for end in stand_in(kind)]

    def end() -> None:
        for each in ends:
            each()
        listeners.clear()

    return end


def wrapped(model: nn.Module) -> Iterator[nn.Module]:
    """A model, and what its wrapper calls. What is in a compiled module is called in a graph."""
    yield model
    while isinstance(model, DistributedDataParallel | nn.DataParallel):
        model = model.module
        yield model


def stand_in(kind: type) -> list[Callable[[], None]]:
    """Give a class a ``__call__`` that notes the call; returns what takes it away, if that is possible."""
    own = vars(kind).get("__call__")

    def __call__(self, *args, **kwargs):
        if not torch.compiler.is_compiling():
            note(self)
        return own(self, *args, **kwargs) if own else super(kind, self).__call__(*args, **kwargs)

    def end() -> None:
        if vars(kind).get("__call__") is __call__:
            if own:
                kind.__call__ = own
            else:
                del kind.__call__

    try:
        kind.__call__ = skipped(__call__)
    except TypeError:  # a class of an extension
        return []
    return [end]
