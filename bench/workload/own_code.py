"""Code of the user's: MODEL=FILE.py:FUNCTION and DATA=FILE.py:FUNCTION, or package.module:FUNCTION.

Beside the function that builds the model (where MODEL is none of the user's, the one that gives the data) a file may
have some of these, in the place of the workload's own:

- ``loss(outputs, targets)``: a scalar, the mean over the batch;
- ``step(model, inputs, targets)``: the forward pass of a step, (outputs, loss); backward pass, exchange and optimizer's
  step stay the bench's, so that they are each mode's;
- ``groups(model)``: the optimizer's parameter groups;
- ``score(outputs, targets)``: a number for each example, larger is better: the metric of a validation.

Beside the function that gives the data there may be ``collate(examples)``, which makes (inputs, targets) of a list of
examples.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
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
from bench.workload.freezing import train_mode

NO_MEMORY = re.compile("allocate memory|enough memory|out of memory")
NAME = "own_code_of_{}_{}"  # of a module that was loaded from a file: its stem, and a hash of its path


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
    except UserError as error:
        raise UserError(f"{option}={text}: {error}") from None
    except ModuleNotFoundError as error:
        raise UserError(f"{option}={text}: there is no module {error.name} here") from error
    except (Exception, SystemExit) as error:  # foreign code can raise anything
        raise UserError(f"{option}={text}: {said(error)}") from error


@functools.cache
def from_file(path: Path) -> ModuleType:
    """A file as a module; its neighbours can be imported by it."""
    if not path.is_file():
        raise FileNotFoundError(2, "not there", str(path))
    name = NAME.format(path.stem, hashlib.sha256(str(path).encode()).hexdigest()[:12])
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: it hides no module of anybody's
    try:
        require_own_neighbours(path)
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def require_own_neighbours(path: Path) -> None:
    """Raise UserError where a file would import the neighbour of another: both have one of this name, and a process,
    as each loader worker that unpickles an example, has one module of a name."""
    folders = {Path(module.__file__).parent for name, module in sys.modules.items() if name.startswith(NAME[:12])}
    for name in sorted(imported_by(path)):
        own_ones = [found.resolve() for found in neighbours(path, name)]
        theirs = file_of_module(name) if own_ones else None
        if theirs and theirs not in own_ones and {theirs.parent, theirs.parent.parent} & {*folders, Path.cwd()}:
            raise UserError(f"it imports {name}, and would get {theirs}, not {own_ones[0]}: a process loads one module "
                            "of each name, so rename one of the two files")  # fmt: skip


def file_of_module(name: str) -> Path | None:
    """The file that an import of this name gives, or has given; None where it is no file."""
    if name in sys.modules:
        place = getattr(sys.modules[name], "__file__", None)
    else:
        place = getattr(importlib.util.find_spec(name), "origin", None)
    return Path(place).resolve() if place and Path(place).is_file() else None


def imported_by(path: Path) -> set[str]:
    """The names of modules that a file imports, and those that its neighbours import."""
    names, files = set(), [path]
    for file in files:  # which grows
        with contextlib.suppress(SyntaxError, ValueError, OSError):  # it says so itself when it is loaded
            for node in ast.walk(ast.parse(file.read_bytes())):
                found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                found += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
                new = {name.partition(".")[0] for name in found} - names
                names |= new
                files += [neighbour for name in new for neighbour in neighbours(path, name)]
    return names


def neighbours(path: Path, name: str) -> list[Path]:
    """The file of the module of this name that lies beside a file."""
    return [found for found in (path.parent / f"{name}.py", path.parent / name / "__init__.py") if found.is_file()]


def from_path(name: str) -> ModuleType:
    """A module by its name, also from the working folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(name)


def call(option: str, text: str, *arguments):
    """What the function that an option names returns. Raises UserError, with the place in the user's file, for what it
    raises; a UserError of its own passes."""
    found = function(option, text)
    with users_code(f"{option}={text}"):
        return found(*arguments)


@contextlib.contextmanager
def users_code(name: str) -> Iterator[None]:
    """Whatever the user's code raises in it, as a UserError with the place there; a UserError passes. name: of what is
    called, in the message."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        large = " is too large, this machine has no memory for it: use a smaller one" if no_memory(error) else ""
        raise UserError(f"{name}{large}: {said(error)}") from error


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


def function_beside(option: str, text: str, name: str) -> Callable | None:
    """A function of the file that an option names; None where it has none of this name."""
    return getattr(loaded(option, text), name, None)


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
        workload.step = lambda model, inputs, targets, loss: own_step(model, *map(batch.opened, (inputs, targets)))
    if own_loss := getattr(module, "loss", None) if not own_score else None:
        workload.count = lambda outputs, targets: torch.cat([
            (own_loss(outputs, targets).mean() * batch.length(targets)).reshape(1), count(outputs, targets)[1:]
        ])  # fmt: skip
    workload.check = functools.partial(try_out, workload, own_step)
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


def try_out(workload, own_step: Callable | None, model: nn.Module, train_set) -> None:
    """One forward and backward pass with two examples, of which nothing stays: before any mode has wrapped the model.
    With EPOCHS or EVALUATE, also what a validation does with them.

    Raises UserError where outputs and targets do not fit, where the loss is no single number, where a parameter
    that is to be trained gets no gradient, and where the outputs cannot be scored.
    """
    config = workload.config
    inputs, targets, _ = train_set[np.arange(min(2, len(train_set)))]
    inputs, targets = (batch.chunks(item, 1)[0] for item in (inputs, targets))
    inputs, targets = workload.prepare(inputs), batch.moved(targets, workload.device)
    with nothing_kept(workload, model):
        silent = [] if config.evaluate else silent_parameters(workload, model, inputs, targets)
    if silent:
        names = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        raise UserError(
            f"MODEL={config.model}: no gradient comes for {names}. DDP waits in each step until every parameter that "
            "is to be trained has its gradient, and fails in the next step when one has none; so no mode starts: "
            f"use {'it' if len(silent) == 1 else 'them'} in the forward pass, remove "
            f"{'it' if len(silent) == 1 else 'them'}, or FREEZE={','.join(silent[:4])}"
        )
    if config.epochs or config.evaluate:
        with nothing_kept(workload, model), torch.no_grad():
            try_validation(workload, own_step, model, inputs, targets, train_set)


@contextlib.contextmanager
def nothing_kept(workload, model: nn.Module) -> Iterator[None]:
    """Buffers, gradients and random numbers are afterwards what they were before."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gpus = [workload.device] if workload.device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        try:
            yield
        finally:
            model.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])


def silent_parameters(workload, model: nn.Module, inputs, targets) -> list[str]:
    with explained(workload, model, "trained", inputs, targets):
        outputs, loss = workload.step(model, inputs, targets, functools.partial(checked_loss, workload))
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise UserError(f"the loss is {shape_of(loss)}, and no single number: return the mean over the batch")
        if workload.config.epochs:
            workload.count(batch.in_float32(outputs), targets)
    if not loss.requires_grad:
        raise UserError(f"MODEL={workload.config.model}: the loss depends on no parameter that is to be trained")
    loss.backward()
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def try_validation(workload, own_step: Callable | None, model: nn.Module, inputs, targets, train_set) -> None:
    """A validation calls ``model(inputs)``. Where that fails, or the score of what it returns, and there is a ``step``,
    it calls that: how else a model of several inputs is called is known nowhere else."""
    _, one_target, _ = train_set[np.arange(1)]

    def by_step(model: nn.Module, inputs, targets):
        targets = batch.moved(one_target, workload.device) if targets is None else targets
        return workload.step(model, inputs, targets, workload.loss)[0]

    def validate() -> None:
        with explained(workload, model, "validated", inputs, targets):
            workload.count(batch.in_float32(workload.forward(model, inputs, targets)), targets)

    model.eval()
    try:
        validate()
    except UserError:
        if not own_step:
            raise
        workload.forward = by_step
        validate()
    finally:
        train_mode(model)


@contextlib.contextmanager
def explained(workload, model: nn.Module, what: str, inputs, targets) -> Iterator[None]:
    """Raise UserError, with the shapes, for what does not fit in it. what: "trained" or "validated"."""
    shapes = f"inputs {shape_of(inputs)}, targets {shape_of(targets)}"
    words = f"MODEL={workload.config.model} cannot be {what} on DATA={workload.config.data}"
    seen = []
    hook = model.register_forward_hook(lambda module, given, output: seen.append(output))
    try:
        yield
    except UserError as error:
        raise UserError(f"{words}: {error}") from None
    except (Exception, SystemExit) as error:  # foreign code can raise anything
        known = f", outputs {shape_of(seen[-1])}" if seen else ""
        alone = isinstance(batch.opened(inputs), torch.Tensor) or hasattr(beside(workload.config), "step")
        hint = "" if alone else ": a model of several inputs is called by a function step(model, inputs, targets)"
        raise UserError(f"{words}: {said(error)} ({shapes}{known}){hint}") from error
    finally:
        hook.remove()


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
    """Shapes of tensors: ``[2, 10]``, ``([2, 3], [2])``, ``{ids: [2, 8]}``; of anything else its type."""
    item = batch.opened(item)
    if isinstance(item, torch.Tensor):
        return str(list(item.shape))
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{name}: {shape_of(part)}" for name, part in item.items()) + "}"
    return f"({', '.join(map(shape_of, item))})" if isinstance(item, tuple | list) else type(item).__name__
