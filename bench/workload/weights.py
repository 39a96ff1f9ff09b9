"""Weights files: read saved weights of any origin, and load them into a plain model."""

import os
import pickle
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from bench.errors import UserError

# The usual keys of a state dict in a checkpoint. The first one found is used: averages come last.
WRAPPED_IN = ("model", "state_dict", "model_state_dict", "weights", "params", "ema", "model_ema", "state_dict_ema",
              "swa")  # fmt: skip
COUNTER = "n_averaged"  # torch's AveragedModel has it next to its ``module``
PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and DDP, and of torch.compile
NESTED = 5  # levels of dicts that are searched: a dict may contain itself
NAMED = 3  # keys listed in a message


def read(path: Path, trust: bool = False):
    """The content of a file, with all tensors on the CPU.

    A file of torch.save is a pickle, which can run code. Without ``trust`` only tensors and plain values are read; with
    it also a complete nn.Module. Raises UserError: missing, truncated, not a checkpoint, or it needs code.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder: name the file in it")
    if not os.path.isfile(path):
        raise UserError(f"{path} does not exist: name a weights file")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    module = SimpleNamespace(__name__="pickle", Unpickler=Unpickler, load=pickle.load)
    how = {"weights_only": False, "pickle_module": module} if trust else {"weights_only": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below has the same text
            return torch.load(path, map_location="cpu", **how)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except Exception as error:  # an unpickler can raise anything
        raise UserError(why_unreadable(path, error)) from None


def read_named(text: str, trust: bool = False) -> tuple[Path, object]:
    """``a.pt``: the file and its content; ``a.pt#ema``: the content under that key. Raises UserError."""
    path, key = Path(text).expanduser(), ""
    if not os.path.exists(path):
        name, _, key = text.partition("#")
        path = Path(name).expanduser()
    content = read(path, trust)
    if not key:
        return path, content
    if not isinstance(content, dict) or key not in content:
        keys = first_names([str(name) for name in content]) if isinstance(content, dict) else "none"
        raise UserError(f"{path} has no entry {key} (its keys: {keys})")
    return path, content[key]


def why_unreadable(path: Path, error: Exception) -> str:
    code = re.search(r"(?<=GLOBAL )\S+|TorchScript", str(error))
    if code:
        return (f"{path} contains more than tensors and plain values, and reading it would run its code "
                f"({code[0]}): use ALLOW_PICKLE=1 if you trust its author")  # fmt: skip
    if isinstance(error, ImportError | AttributeError):
        return f"{path} needs code that is not available ({reason(error)}): save the model's state dict instead"
    with path.open("rb") as file:
        torchs = file.read(4) == b"PK\x03\x04"
    if torchs or isinstance(error, EOFError) or "unexpected EOF" in str(error):
        return f"{path} is truncated or damaged ({reason(error).partition('. ')[0]}): copy or save it again"
    return f"{path} is not a checkpoint: use a file of torch.save, or of safetensors (named .safetensors)"


class Unpickler(pickle.Unpickler):
    """Reads a pickled DDP module, which would need a process group, as a plain module."""

    def find_class(self, module: str, name: str):
        found = super().find_class(module, name)
        return nn.Module if found is nn.parallel.DistributedDataParallel else found


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise UserError(f"{path} needs the package safetensors: pip install safetensors") from None
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is truncated or not a safetensors file ({reason(error)})") from None


def reason(error: BaseException) -> str:
    """An error in one line; for torch's RuntimeError about a failed write, the OSError behind it."""
    behind = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    lines = (getattr(behind, "strerror", None) or str(behind or error)).splitlines()
    return lines[0] if lines else type(error).__name__


def weights_in(content, path: Path, depth: int = 0) -> dict[str, torch.Tensor]:
    """The state dict in a file's content, with the names of the plain model (``strip_prefixes``).

    content: a checkpoint of this bench, a state dict, either of them under a usual key (WRAPPED_IN), or a module.
    Raises UserError if no weights are found.
    """
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if not isinstance(content, dict):
        raise UserError(f"{path} contains a {type(content).__name__}, not weights: save the model's state dict")
    if not all(isinstance(key, str) for key in content):
        raise UserError(f"{path} contains keys that are not strings ({first_names([repr(key) for key in content])}): "
                        "save the model's state dict")  # fmt: skip
    if not content or not all(isinstance(value, torch.Tensor) for value in content.values()):
        if depth < NESTED and (found := places_in(content)):
            return weights_in(content[found[0]], path, depth + 1)
        raise UserError(f"{path} contains no weights under a known key (its keys: {first_names(list(content))}): save "
                        "the model's state dict")  # fmt: skip
    for key, value in content.items():
        if value.is_meta or value.layout != torch.strided or value.is_complex() or not value.isfinite().all():
            raise UserError(f"{path}: {key} is not an array of finite real numbers: the training diverged, or the file "
                            "does not contain a model's weights")  # fmt: skip
    return strip_prefixes(content)


def places_in(content) -> list[str]:
    """The usual keys that have weights, in the order of WRAPPED_IN."""
    return [key for key in WRAPPED_IN if holds_tensors(content.get(key))] if isinstance(content, dict) else []


def holds_tensors(item, depth: int = 0) -> bool:
    if isinstance(item, dict):
        return depth < NESTED and any(holds_tensors(value, depth + 1) for value in item.values())
    return isinstance(item, torch.Tensor | nn.Module)


def strip_prefixes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``module._orig_mod.fc.bias`` -> ``fc.bias``, if all keys have the prefix."""
    inner = {key: value for key, value in weights.items() if key != COUNTER}
    for prefix in PREFIXES:
        if inner and all(key.startswith(prefix) for key in inner):
            return strip_prefixes({key.removeprefix(prefix): value for key, value in inner.items()})
    return weights


def load_weights(
    model: nn.Module, weights: dict[str, torch.Tensor], path: Path, new_head: bool = False, fresh: tuple[str, ...] = ()
) -> list[str]:
    """Load weights into the plain model, strictly: every key and every shape must match.

    new_head: keep the model's head if its shape differs (another number of classes), to fine-tune. fresh: further
    parameters that may differ like this. Returns sentences about parameters not loaded from the file. Raises UserError
    that names the keys; the model is then unchanged.
    """
    own, notes = model.state_dict(), []
    weights = dict(weights)
    missing = [key for key in own if key not in weights]
    counters = [key for key in missing if key.endswith(".num_batches_tracked")]
    if counters and missing == counters:  # old files have none, and only norms without momentum need them
        weights |= {key: own[key] for key in counters}
        notes.append(f"{path.name} has no num_batches_tracked: {len(counters)} counters of batch norms are unchanged")
        missing = []
    unexpected = [key for key in weights if key not in own]
    other = [key for key in own if key in weights and own[key].shape != weights[key].shape]

    head = head_of(model)
    allowed = {key for key in fresh if key in other}
    if new_head and f"{head}.weight" in other:
        allowed |= {f"{head}.weight", f"{head}.bias"} & own.keys()
    mismatches = [f"{key} {[*weights[key].shape]} for {[*own[key].shape]}" for key in other if key not in allowed]
    faults = {"missing": missing, "unexpected": unexpected, "of another shape": mismatches}
    if any(faults.values()):
        what = "; ".join(f"{name} {first_names(keys)}" for name, keys in faults.items() if keys)
        raise UserError(f"{path} does not match this model: {what}: use the model it was saved from (MODEL, NORM, "
                        "IMAGE_SIZE)")  # fmt: skip
    for key in [key for key in own if key in allowed]:
        notes.append(f"{key} {[*own[key].shape]} is initialised randomly: in {path.name} it is {[*weights[key].shape]}")
        weights[key] = own[key]
    model.load_state_dict(weights)
    return notes


def head_of(model: nn.Module) -> str:
    """The name of the classifier: the last Linear or Conv2d, as in all torchvision models; "" without one."""
    return ["", *(name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d))][-1]


def first_names(names: list[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > NAMED else ""
    return (", ".join(names[:NAMED]) or "none") + more
