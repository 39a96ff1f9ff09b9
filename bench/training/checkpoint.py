"""Checkpoints: a run's state on disk, and the weights that other people have saved.

What comes in: a dict of tensors and plain values, or a path. What goes out: a file that is either the old one or the
new one, whole, whenever the power fails; or weights that fit a plain model.

A checkpoint of this bench is one dict, written by rank 0 alone:

    format       FORMAT
    version      VERSION
    model        the state dict of the UNWRAPPED model: no key starts with ``module.``, so it fits every mode
    optimizer    the optimizer's state dict
    scaler       the gradient scaler's state dict, or None
    step         steps taken
    images_seen  images trained on, over all ranks
    loss_sum     of the steps of the epoch that has begun, a mean over ranks; loss_steps: how many those are
    skipped_steps  steps that the loss guard or the scaler left out
    elapsed_s    seconds of training and validation, over all runs up to here
    accuracy     one row an epoch, as in the record
    guard        the mean loss that the loss guard knows, or None
    config       the run's options, plain values
    num_images   the length of the training set
    world_size   processes
    ranks        one dict a rank: its buffers (batch norms differ by rank in some modes), its RNG's state, and the names
                 of images it could not read
"""

import contextlib
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from bench import files
from bench.errors import BenchError, UserError

FORMAT = "data-parallel-bench checkpoint"
VERSION = 1
LATEST = "latest.pt"  # the newest of a run
KEYS = (
    "model", "optimizer", "scaler", "step", "images_seen", "loss_sum", "loss_steps", "skipped_steps", "elapsed_s",
    "accuracy", "guard", "config", "num_images", "world_size", "ranks",
)  # fmt: skip

WRAPPED_IN = ("model", "state_dict", "model_state_dict")  # the keys under which people save a state dict
PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and DDP, and torch.compile, put before each key
NAMED = 3  # keys that a message names before it counts the rest


# Writing


def save(path: Path, state: dict) -> None:
    """Write a checkpoint. Whatever happens, ``path`` is the old one or the new one, never half of one.

    Raises BenchError in one line when it cannot be written (a full disk); the temporary file is removed then.
    """
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        torch.save(state, file)


def keep_best(latest: Path, best: Path) -> None:
    """``best`` becomes what ``latest`` is now, and stays it when ``latest`` is replaced.

    A hard link costs no bytes and no time: ``save`` gives the name ``latest`` to a new file and leaves the old one as
    it is. Where links are impossible it is a copy. Raises BenchError in one line when neither can be made.
    """
    with replacing(Path(best)) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(latest, temporary)
        except OSError:
            with open(latest, "rb") as source, temporary.open("wb") as file:
                shutil.copyfileobj(source, file)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """``files.written_whole``, with an error that says what became of the checkpoint before."""
    try:
        with files.written_whole(path, path.with_name(path.name + ".tmp")) as temporary:
            yield temporary
    except (OSError, RuntimeError) as error:
        earlier = "the earlier one there is whole" if os.path.exists(path) else "there was no earlier one"
        raise BenchError(f"cannot save {path} ({reason(error)}): {earlier}") from error


def reason(error: BaseException) -> str:
    """Why, in one line. torch turns a failed write into a RuntimeError about positions; the cause is behind it."""
    behind = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    if behind is not None and behind.strerror:
        return behind.strerror
    return (str(behind or error).splitlines() or [type(error).__name__])[0]


# Reading


def find(text: str) -> Path:
    """The checkpoint that RESUME=text names: a file, a run's folder (its latest.pt), or a folder of runs.

    In a folder of runs it is the latest.pt that was written last. Raises UserError when there is none.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"RESUME={text} is not there: name a checkpoint, a run's folder or a folder of runs")
    if (path / LATEST).is_file():
        return path / LATEST
    found = sorted(path.rglob(LATEST), key=lambda p: (p.stat().st_mtime_ns, p))
    if not found:
        raise UserError(f"RESUME={text}: no latest.pt in that folder or below it, so there is nothing to resume")
    return found[-1]


def read(path: Path, trust: bool = False):
    """What a file holds, with all tensors on the CPU whatever device they were saved from.

    A file of torch.save is a pickle: a program that builds objects. Without ``trust`` only tensors and plain values
    are built and no code of the file's choosing runs. With it, a whole pickled nn.Module can be read too.

    Returns a dict, or whatever was saved. Raises UserError in one line: not there, cut short, no checkpoint, or in
    need of code.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder: name the file in it")
    if not os.path.isfile(path):
        raise UserError(f"{path} is not there")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    how = {"weights_only": False, "pickle_module": TrustingPickle} if trust else {"weights_only": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what becomes one line below
            return torch.load(path, map_location="cpu", **how)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except Exception as error:  # a foreign file can make an unpickler raise anything
        raise UserError(why_unreadable(path, error)) from None


def why_unreadable(path: Path, error: Exception) -> str:
    """One line on a file that torch.load refused."""
    code = re.search(r"(?<=GLOBAL )\S+|TorchScript", str(error))
    if code:
        return (
            f"{path} holds more than tensors and plain values: reading it runs code of its maker's choosing "
            f"({code[0]}); TRUST=1 reads it if you trust its maker"
        )
    if isinstance(error, ImportError | AttributeError):
        return f"{path} needs code that is not here ({reason(error)}): save the model's state dict instead"
    with path.open("rb") as file:
        torchs = file.read(4) == b"PK\x03\x04"
    if torchs or isinstance(error, EOFError) or "unexpected EOF" in str(error):
        return f"{path} is cut short or damaged ({reason(error).partition('. ')[0]}): copy or save it again"
    return f"{path} is not a checkpoint: torch.save writes one, and safetensors (name it .safetensors)"


class Unpickler(pickle.Unpickler):
    """A whole DDP module, unpickled, asks for a process group and builds a reducer; its weights need neither."""

    def find_class(self, module: str, name: str):
        found = super().find_class(module, name)
        return PlainShell if found is nn.parallel.DistributedDataParallel else found


class PlainShell(nn.Module):
    """What is left of a DDP module: the model under the name ``module``."""


class TrustingPickle:
    """What torch.load asks of the pickle module."""

    Unpickler, load = Unpickler, pickle.load


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, a format that cannot hold code."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise UserError(f"{path} needs the package safetensors: pip install safetensors") from None
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is cut short or no safetensors file ({reason(error)})") from None


def check(state, path: Path) -> None:
    """Raise UserError unless ``state``, read from ``path``, is a checkpoint that a run can be resumed from."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(
            f"{path} is not a checkpoint of this bench: PRETRAINED={path} starts a new run from its weights"
        )
    version = state.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        advice = "a newer bench wrote it: update this one" if newer else "this bench never wrote such a one"
        raise UserError(f"{path} is a checkpoint of version {version}, and {VERSION} is read here: {advice}")
    missing = [key for key in KEYS if key not in state]
    if missing:
        raise UserError(f"{path} is a checkpoint without {listed(missing)}: it cannot be resumed from")


# Weights


def weights_in(content, path: Path) -> dict[str, torch.Tensor]:
    """The state dict in whatever a person has saved, under the names of the plain model.

    content: a checkpoint of this bench, a state dict, either of them under a usual key (WRAPPED_IN), or a whole
    module. A prefix of PREFIXES is stripped, as often as it stands there, when ALL keys carry it: then it can only be
    a wrapper's. Raises UserError when no weights are found.
    """
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not weights: save the model's state dict")
    if not content or not all(isinstance(value, torch.Tensor) for value in content.values()):
        for key in WRAPPED_IN:
            if isinstance(content.get(key), dict | nn.Module):
                return weights_in(content[key], path)
        keys = listed([str(key) for key in content]) if content else "none"
        raise UserError(f"{path} holds no weights under a known name (its keys: {keys}): save the model's state dict")
    return strip_prefixes(content)


def strip_prefixes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``module._orig_mod.fc.bias`` -> ``fc.bias``, when all keys are so."""
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in weights):
            return strip_prefixes({key.removeprefix(prefix): value for key, value in weights.items()})
    return weights


def load_weights(
    model: nn.Module, weights: dict[str, torch.Tensor], path: Path, new_head: bool = False, fresh: tuple[str, ...] = ()
) -> list[str]:
    """Load weights into the plain model, strictly: every key, and every shape. An unwrapped model on any device.

    new_head: for fine-tuning: where the shape of the head's weights differs (another number of classes), the head
    stays as it is, and everything else must fit. fresh: further parameters of which the same is allowed.

    Returns sentences about what was not taken from the file, empty when all was. Raises UserError that names the keys
    when something does not fit; the model is unchanged then.
    """
    own, notes = model.state_dict(), []
    weights = dict(weights)
    missing = [key for key in own if key not in weights]
    counters = [key for key in missing if key.endswith(".num_batches_tracked")]
    if counters and missing == counters:  # older files have none, and only a norm without momentum reads them
        weights |= {key: own[key] for key in counters}
        notes.append(
            f"{Path(path).name} has no num_batches_tracked: {len(counters)} counters of batch norms stay as they are"
        )
        missing = []
    unexpected = [key for key in weights if key not in own]
    other = [key for key in own if key in weights and own[key].shape != weights[key].shape]

    head = head_of(model)
    allowed = {key for key in fresh if key in other}
    if new_head and f"{head}.weight" in other:
        allowed |= {f"{head}.weight", f"{head}.bias"} & own.keys()
    misfits = [f"{key} {shape(weights[key])} for {shape(own[key])}" for key in other if key not in allowed]
    faults = {"missing": missing, "unexpected": unexpected, "of another shape": misfits}
    if any(faults.values()):
        what = "; ".join(f"{name} {listed(keys)}" for name, keys in faults.items() if keys)
        raise UserError(
            f"{path} does not fit this model: {what}: build the model it was saved from (MODEL, NORM, IMAGE_SIZE)"
        )
    for key in [key for key in own if key in allowed]:
        notes.append(f"{key} {shape(own[key])} stays fresh: {Path(path).name} has it {shape(weights[key])}")
        weights[key] = own[key]
    model.load_state_dict(weights)
    return notes


def head_of(model: nn.Module) -> str:
    """The name of the classifier: the last Linear or Conv2d, which it is in every classifier of torchvision."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]


def shape(tensor: torch.Tensor) -> str:
    """[64, 3, 7, 7]."""
    return str(list(tensor.shape))


def listed(names: list[str]) -> str:
    """The first names, and how many there are when some are left out."""
    more = f", … ({len(names)} in all)" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
