"""Code of the user's: MODEL=FILE.py:FUNCTION and DATA=FILE.py:FUNCTION, or package.module:FUNCTION.

Beside the function that builds the model (where MODEL is none of the user's, the one that gives the data) a file may
have some of these, in the place of the workload's own:

- ``loss(outputs, targets)``: a scalar, the mean over the batch;
- ``step(model, inputs, targets)``: the forward pass of a step, (outputs, loss); backward pass, exchange and optimizer's
  step stay the bench's, so that they are each mode's;
- ``groups(model)``: the optimizer's parameter groups;
- ``score(outputs, targets)``: a number for each example, larger is better: the metric of a validation.
"""

import functools
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import nn

from bench import mistakes
from bench.config import own
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.workload import batch

NO_MEMORY = re.compile("allocate memory|enough memory|out of memory")
NAME = "own_code_of_{}"  # of a module that was loaded from a file: its stem


def function(option: str, text: str):
    """The function that an option names. Raises UserError in one line: no such file, module or function, or what the
    user's own code raised, with its place."""
    where, name = own.named(text)
    module = loaded(option, text)
    found = getattr(module, name, None)
    if not callable(found):
        others = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")
                  and getattr(value, "__module__", None) == module.__name__]  # fmt: skip
        raise UserError(f"{option}={text}: {where} has no function {name}"
                        + (f" (it has {', '.join(others[:6])})" if others else ""))  # fmt: skip
    return found


def loaded(option: str, text: str) -> ModuleType:
    """The module of a value, loaded once in a process. Raises UserError when it cannot be."""
    where, _ = own.named(text)
    try:
        return from_file(Path(where).expanduser().resolve()) if own.is_file(where) else from_path(where)
    except FileNotFoundError as error:
        if own.is_file(where) and str(error.filename) == str(Path(where).expanduser().resolve()):
            raise UserError(f"{option}={text}: {where} is not there") from None
        raise UserError(f"{option}={text}: {said(error)}") from error
    except ModuleNotFoundError as error:
        raise UserError(f"{option}={text}: there is no module {error.name} here") from error
    except (Exception, SystemExit) as error:  # foreign code can raise anything
        raise UserError(f"{option}={text}: {said(error)}") from error


@functools.cache
def from_file(path: Path) -> ModuleType:
    """A file as a module; its neighbours can be imported by it."""
    if not path.is_file():
        raise FileNotFoundError(2, "not there", str(path))
    name = NAME.format(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: it hides no module of anybody's
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def from_path(name: str) -> ModuleType:
    """A module by its name, also from the working folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(name)


def call(option: str, text: str, *arguments):
    """What the function that an option names returns. Raises UserError, with the place in the user's file, for what it
    raises; a UserError of its own passes."""
    found = function(option, text)
    try:
        return found(*arguments)
    except UserError:
        raise
    except Exception as error:
        large = " is too large, this machine has no memory for it: use a smaller one" if no_memory(error) else ""
        raise UserError(f"{option}={text}{large}: {said(error)}") from error


def no_memory(error: BaseException) -> bool:
    """Whether an error says that there is not the memory; torch's allocators raise RuntimeErrors of it.

    >>> no_memory(MemoryError()), no_memory(RuntimeError("can't allocate memory: you tried to allocate 8 bytes"))
    (True, True)
    >>> no_memory(RuntimeError("unsupported memory format"))
    False
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error))))


def said(error: BaseException) -> str:
    """What user's code raised, in one line with its place there."""
    words = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    theirs = [frame for frame in frames if Path(__file__).parents[1] not in Path(frame.filename).parents]
    inner = [frame for frame in theirs if "site-packages" not in frame.filename] or theirs
    return f"{words} ({Path(inner[-1].filename).name}, line {inner[-1].lineno})" if inner else words


def beside(config: RunConfig) -> ModuleType | None:
    """The module whose other functions count: the model's, or the data's; None where neither is the user's."""
    for option, text in (("MODEL", config.model), ("DATA", config.data)):
        if own.named(text or ""):
            return loaded(option, text)
    return None


def attach(workload) -> None:
    """Put the user's functions in the place of a workload's. Where something is the user's, a step is tried first."""
    config, module = workload.config, beside(workload.config)
    if module is None:
        return
    count, facts = workload.count, workload.facts
    own_score = workload.info.name == "own"
    for name in ("loss", "groups", *(["score"] if own_score else [])):
        if found := getattr(module, name, None):
            setattr(workload, name, found)
    if own_step := getattr(module, "step", None):
        if config.mistake != "none" and "loss" in mistakes.MISTAKES[config.mistake].overrides:
            raise UserError(
                f"MISTAKE={config.mistake} is made in the loss, and {module.__file__} has a step of its own: take that "
                "function out, or choose another mistake"
            )
        workload.step = lambda model, inputs, targets, loss: own_step(model, inputs, targets)
    if own_loss := getattr(module, "loss", None) if not own_score else None:
        workload.count = lambda outputs, targets: torch.cat([
            (own_loss(outputs, targets) * batch.length(targets)).reshape(1), count(outputs, targets)[1:]
        ])  # fmt: skip
    workload.check = functools.partial(try_out, workload)
    workload.facts = lambda model: facts(model) | sources(config)


def sources(config: RunConfig) -> dict[str, str]:
    """The SHA-256 of each file that is the user's: ``model_source_sha256`` and ``data_source_sha256``."""
    found = {}
    for option, text in (("MODEL", config.model), ("DATA", config.data)):
        if own.named(text or ""):
            path = loaded(option, text).__file__
            found[f"{option.lower()}_source_sha256"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return found


# --- before training: is it a model that can be trained? ----------------------------------------------------------


def try_out(workload, model: nn.Module, train_set) -> None:
    """One forward and backward pass with two examples, of which nothing stays: before any mode has wrapped the model.

    Raises UserError where outputs and targets do not fit, where the loss is no single number, and where a parameter
    that is to be trained gets no gradient.
    """
    config = workload.config
    inputs, targets, _ = train_set[np.arange(min(2, len(train_set)))]
    inputs, targets = workload.prepare(inputs), batch.moved(targets, workload.device)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gpus = [workload.device] if workload.device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        try:
            loss = forward(workload, model, inputs, targets)
            if not loss.requires_grad:
                raise UserError(f"MODEL={config.model}: the loss depends on no parameter that is to be trained")
            loss.backward()
            silent = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
        finally:
            model.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
    if silent:
        names = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        raise UserError(
            f"MODEL={config.model}: no gradient comes for {names}. DDP waits in each step until every parameter that "
            "is to be trained has its gradient, and fails in the next step when one has none; so no mode starts: "
            f"use {'it' if len(silent) == 1 else 'them'} in the forward pass, remove "
            f"{'it' if len(silent) == 1 else 'them'}, or FREEZE={','.join(silent[:4])}"
        )


def forward(workload, model: nn.Module, inputs, targets) -> torch.Tensor:
    """The forward pass; the loss. Raises UserError, with the shapes, for what does not fit."""
    shapes = f"inputs {shape_of(inputs)}, targets {shape_of(targets)}"
    words = f"MODEL={workload.config.model} cannot be trained on DATA={workload.config.data}"
    seen = []
    hook = model.register_forward_hook(lambda module, given, output: seen.append(output))
    try:
        _, loss = workload.step(model, inputs, targets, functools.partial(checked_loss, workload))
    except UserError as error:
        raise UserError(f"{words}: {error}") from None
    except Exception as error:  # foreign code can raise anything
        known = f", outputs {shape_of(seen[-1])}" if seen else ""
        raise UserError(f"{words}: {said(error)} ({shapes}{known})") from error
    finally:
        hook.remove()
    if not isinstance(loss, torch.Tensor) or loss.dim():
        found = shape_of(loss) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UserError(f"{words}: the loss is {found}, and no single number: return the mean over the batch")
    return loss


def checked_loss(workload, outputs, targets) -> torch.Tensor:
    """The loss; before a workload's own is asked, whether the shapes fit: some that do not are broadcast, and a class
    that there is no output for ends a GPU's process."""
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor) and hasattr(workload.loss, "__self__"):
        if targets.is_floating_point() and outputs.shape != targets.shape:
            raise UserError(f"outputs {shape_of(outputs)} do not fit targets {shape_of(targets)}")
        if not targets.is_floating_point():
            classes = (
                outputs.shape[-1] if workload.info.name == "text" else outputs.shape[1] if outputs.dim() > 1 else 0
            )
            if int(targets.max()) >= classes or int(targets.min()) < 0:
                raise UserError(f"outputs {shape_of(outputs)} are for {classes} classes, and the targets "
                                f"{shape_of(targets)} have class {int(targets.max())}")  # fmt: skip
    return workload.loss(outputs, targets)


def shape_of(item) -> str:
    """Shapes of tensors: ``[2, 10]``, ``([2, 3], [2])``."""
    if isinstance(item, tuple | list):
        return f"({', '.join(map(shape_of, item))})"
    return str(list(item.shape)) if isinstance(item, torch.Tensor) else type(item).__name__
