"""Tensors in structures: the inputs and the outputs of a model, a batch; and the blocks that a model is made of.

A structure is a tensor, or a tuple, list, mapping or object that holds structures: dicts, named tuples, dataclasses,
the outputs of Hugging Face's transformers, a ``SimpleNamespace``. Anything else in it (None, numbers, text) stays as it
is. PyTorch has no public function for this: ``torch.utils._pytree`` is private, and treats a subclass of ``dict`` and
an object of an unregistered class as a leaf.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType

import torch
from torch import nn


def is_tensor(item) -> bool:
    """The default of ``is_leaf`` below."""
    return isinstance(item, torch.Tensor)


def items_of(item) -> dict:
    """The items of a mapping, list or tuple, by key or index."""
    if isinstance(item, Mapping):
        return dict(item)
    return dict(enumerate(item)) if isinstance(item, tuple | list | deque) else {}


def attributes_of(item) -> dict:
    """The attributes of an object by name. A class, a function and a module (also of weights) hold no structure."""
    if callable(item) or isinstance(item, ModuleType):
        return {}
    slots = [kind.__dict__.get("__slots__", ()) for kind in type(item).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    return {name: getattr(item, name) for name in names if hasattr(item, name)} | getattr(item, "__dict__", {})


def leaves(item, is_leaf: Callable = is_tensor, seen: dict | None = None) -> Iterator:
    """The leaves in order; a repeated leaf or structure counts once."""
    seen = {} if seen is None else seen
    if id(item) in seen:
        return
    seen[id(item)] = item  # which keeps it alive, so its id is not reused
    if is_leaf(item):
        yield item
        return
    for children in (items_of(item), attributes_of(item)):
        for child in children.values():
            yield from leaves(child, is_leaf, seen)


def tensors(item) -> list[torch.Tensor]:
    """The tensors in a structure.

    >>> [tensor.item() for tensor in tensors({"a": torch.tensor(1), "b": [None, (torch.tensor(2), "text")]})]
    [1, 2]
    """
    return list(leaves(item))


def rebuild(item, new: Iterator, is_leaf: Callable = is_tensor, made: dict | None = None):
    """The same structure with other leaves: ``new`` yields them in the order of ``leaves``. A part that is unchanged is
    not copied."""
    made = {} if made is None else made
    if id(item) in made:
        return made[id(item)][1]
    made[id(item)] = item, item  # if a structure contains itself
    if is_leaf(item):
        result = next(new)
    else:
        changed = []
        for children in (items_of(item), attributes_of(item)):
            found = {name: rebuild(child, new, is_leaf, made) for name, child in children.items()}
            changed.append({name: value for name, value in found.items() if value is not children[name]})
        result = with_changes(item, *changed) if any(changed) else item
    made[id(item)] = item, result
    return result


def with_changes(item, items: dict, attributes: dict):
    """A copy of a structure with these items and attributes instead."""
    if isinstance(item, tuple):
        values = [items.get(index, value) for index, value in enumerate(item)]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if isinstance(item, Mapping) and not isinstance(item, MutableMapping):
        return type(item)(dict(item) | items)
    result = copy.copy(item)
    for name, value in attributes.items():
        if name in getattr(result, "__dict__", ()):
            result.__dict__[name] = value  # also of a frozen dataclass
        else:
            object.__setattr__(result, name, value)
    for name, value in items.items():
        result[name] = value
    return result


def each(function: Callable, item, is_leaf: Callable = is_tensor):
    """The same structure with ``function`` of each leaf.

    >>> each(lambda tensor: tensor + 1, {"a": torch.tensor(1), "b": None})
    {'a': tensor(2), 'b': None}
    """
    return rebuild(item, map(function, leaves(item, is_leaf)), is_leaf)


def split(item, pieces: Callable) -> list:
    """A structure in several parts. pieces: cuts one tensor, each into the same number. Without a tensor there is one
    part.

    >>> split({"a": torch.arange(4)}, lambda tensor: tensor.chunk(2))
    [{'a': tensor([0, 1])}, {'a': tensor([2, 3])}]
    """
    parts = zip(*map(pieces, tensors(item)), strict=True)
    return [rebuild(item, iter(part)) for part in parts] or [item]


def join(items: list, function: Callable):
    """One structure of several of the same form. function: one tensor of a list of them. The rest is the first item's.
    Raises ValueError where they have different numbers of tensors.

    >>> join([(torch.zeros(1), "text"), (torch.ones(1), "text")], torch.cat)
    (tensor([0., 1.]), 'text')
    """
    return rebuild(items[0], map(function, zip(*map(tensors, items), strict=True)))


class TensorList:
    """Turns a module's output into a list of its tensors while a wrapper handles it. torch's FSDP and DDP search an
    output for tensors, and do not find them in every object. Then gradients are not reduced, without an error.

    Made before the wrapper adds its forward hooks; ``close`` is called after that with the wrapper. The wrapped module
    can still be called without the wrapper, as in a validation.
    """

    def __init__(self, module: torch.nn.Module):
        self.wrapped = False  # whether the wrapper is calling the module
        module.register_forward_hook(self.to_list)

    def close(self, wrapper: torch.nn.Module) -> None:
        """After this the output has its own form again."""
        wrapper.register_forward_pre_hook(self.begin)
        wrapper.register_forward_hook(self.from_list)

    def begin(self, *_) -> None:
        self.wrapped = True

    def to_list(self, module, inputs, output):
        if is_tensor(output) or not self.wrapped:
            return None
        self.output = output
        return tensors(output)

    def from_list(self, module, inputs, output):
        self.wrapped = False
        if is_tensor(output):
            return None
        whole, self.output = self.output, None
        return rebuild(whole, iter(output))


def module_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers of a module, or their replacements in a replica of ``nn.DataParallel``."""
    for module in model.modules():
        yield from (tensor for tensor in module._parameters.values() if tensor is not None)
        yield from (tensor for tensor in module._buffers.values() if tensor is not None)


def blocks_of(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of the units of sharding: the outermost members of every ``nn.Sequential`` and ``nn.ModuleList``
    that have parameters. Of a ResNet the residual blocks, of a transformer the layers.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2)))
    >>> [name for name, _ in blocks_of(net)]
    ['0', '2']
    """
    for name, child in module.named_children():
        if next(child.parameters(), None) is None:
            continue
        member = isinstance(module, nn.Sequential | nn.ModuleList)
        if member and type(child).forward is not nn.Module.forward:  # a list in a list computes nothing
            yield path + name, child
        else:
            yield from blocks_of(child, f"{path}{name}.")


def parameters_of(*optimizers) -> list[torch.Tensor]:
    """All parameters of optimizers, in the order of a state dict."""
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
