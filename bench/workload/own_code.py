"""The user's code: MODEL=FILE.py:FUNCTION and DATA=FILE.py:FUNCTION, or package.module:FUNCTION.

In the model's file (the data's, if only DATA is the user's) these functions replace the workload's:
``loss(outputs, targets)``: a scalar, the mean over the batch; ``step(model, inputs, targets)``: the forward pass,
(outputs, loss); ``groups(model)``: the optimizer's parameter groups; ``score(outputs, targets)``: the metric of a
validation, [batch], larger is better. In the data's file ``collate(examples)`` makes (inputs, targets)."""

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
FROM_FILES: dict[str, ModuleType] = {}  # name -> module


def loaded(option: str, text: str) -> ModuleType:
    """The module of an option's value, loaded once in a process. Raises UserError."""
    where, _ = own.named(text)
    path = Path(where).expanduser().resolve()
    if own.is_file(where) and not path.is_file():
        raise UserError(f"{option}={text}: {where} does not exist")
    with users_code(f"{option}={text}"):
        if own.is_file(where):
            return from_file(path)
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return importlib.import_module(where)


@functools.cache
def from_file(path: Path) -> ModuleType:
    """Import a file as a module; it can import its neighbours."""
    name = NAME.format(path.stem, hashlib.sha256(str(path).encode()).hexdigest()[:12])
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = FROM_FILES[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that it hides no other module
    try:
        require_own_neighbours(path)
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name], FROM_FILES[name]
        raise
    return module


def require_own_neighbours(path: Path) -> None:
    """Raise ImportError if a file would import another file's neighbour: both have a neighbour of this name, but a
    process, also a loader worker that unpickles an example, has only one module per name."""
    folders = {Path(module.__file__).parent for module in FROM_FILES.values()}
    neighbours, files = {}, [path]  # neighbours: name -> its file, of each module that is imported directly or not
    for file in files:  # which grows
        for name in imported_by(file) - neighbours.keys():
            places = path.parent / f"{name}.py", path.parent / name / "__init__.py"
            neighbours[name] = [place for place in places if place.is_file()]
            files += neighbours[name]
    for name, places in sorted(neighbours.items()):
        own_ones = [place.resolve() for place in places]
        theirs = file_of_module(name) if own_ones else None
        if theirs and theirs not in own_ones and {theirs.parent, theirs.parent.parent} & {*folders, Path.cwd()}:
            raise ImportError(f"it imports {name} and would get {theirs}, not {own_ones[0]}: a process loads one "
                              "module per name: rename one of the two files")  # fmt: skip


def file_of_module(name: str) -> Path | None:
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    place = getattr(spec, "origin", None) or getattr(sys.modules.get(name), "__file__", None)
    return Path(place).resolve() if place and Path(place).is_file() else None


def imported_by(file: Path) -> set[str]:
    """The top-level names of the modules that a file imports."""
    found = set()
    with contextlib.suppress(SyntaxError, ValueError, OSError):  # loading the file reports it
        for node in ast.walk(ast.parse(file.read_bytes())):
            found |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            found |= {node.module} if isinstance(node, ast.ImportFrom) and not node.level else set()
    return {name.partition(".")[0] for name in found}


def call(option: str, text: str, *arguments):
    """Call the function that an option names. Raises UserError in one line: no such file, module or function, or the
    user's exception with its line."""
    where, name = own.named(text)
    module = loaded(option, text)
    found = getattr(module, name, None)
    if not callable(found):
        others = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")
                  and getattr(value, "__module__", None) == module.__name__]  # fmt: skip
        has = f" (it has {', '.join(others[:6])})" if others else ""
        raise UserError(f"{option}={text}: {where} has no function {name}{has}")
    with users_code(f"{option}={text}"):
        return found(*arguments)


@contextlib.contextmanager
def users_code(name: str) -> Iterator[None]:
    """Turn exceptions of the user's code into a UserError with their place. name: of the function."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        large = " is too large for this machine's memory: use a smaller one" if is_out_of_memory(error) else ""
        raise UserError(f"{name}{large}: {error_line(error)}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch's allocators raise RuntimeError then.

    >>> is_out_of_memory(RuntimeError("can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error))))


def error_line(error: BaseException) -> str:
    """An error of the user's code in one line, with its place there."""
    words = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    theirs = [frame for frame in frames if Path(__file__).parents[1] not in Path(frame.filename).parents]
    inner = [frame for frame in theirs if "site-packages" not in frame.filename] or theirs
    return f"{words} ({Path(inner[-1].filename).name}, line {inner[-1].lineno})" if inner else words


def why_not_simulated(error: BaseException) -> str:
    """Why a step cannot be simulated with tensors that have no data."""
    from torch._subclasses import fake_tensor

    if isinstance(error, fake_tensor.DataDependentOutputException | fake_tensor.DynamicOutputShapeException):
        return f"its step depends on the values in its tensors: {error_line(error)}"
    return str(error) if isinstance(error, UserError) else error_line(error)


def own_modules(config: RunConfig) -> Iterator[tuple[str, ModuleType]]:
    """("MODEL" or "DATA", its module) for each user file."""
    for option, text in (("MODEL", config.model), ("DATA", config.data)):
        if own.named(text or ""):
            yield option, loaded(option, text)


def find_own_module(config: RunConfig) -> ModuleType | None:
    """The module whose loss, step, groups and score are used; None if neither model nor data are the user's."""
    return next((module for _, module in own_modules(config)), None)


def attach(workload) -> None:
    """Replace a workload's functions by the user's, and try a step before training."""
    config, module = workload.config, find_own_module(workload.config)
    if module is None:
        return
    count, facts = workload.count, workload.facts
    own_score = workload.info.name == "own"
    for name in ("loss", "groups", *(["score"] if own_score else [])):
        if found := getattr(module, name, None):
            setattr(workload, name, found)
    if own_step := getattr(module, "step", None):
        if config.mistake != "none" and "loss" in mistakes.MISTAKES[config.mistake].overrides:
            raise UserError(f"INJECT={config.mistake} changes the loss, but {module.__file__} defines its own step: "
                            "remove that function, or choose another mistake")  # fmt: skip
        workload.step = lambda model, inputs, targets, loss: own_step(model, *map(batch.opened, (inputs, targets)))
    if own_loss := getattr(module, "loss", None) if not own_score else None:
        workload.count = lambda outputs, targets: torch.cat([
            (own_loss(outputs, targets).mean() * batch.length(targets)).reshape(1), count(outputs, targets)[1:]
        ])  # fmt: skip
    workload.check = functools.partial(try_out, workload, own_step)
    workload.facts = lambda model: (
        facts(model)
        | {
            f"{option.lower()}_source_sha256": hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
            for option, module in own_modules(config)
        }
    )


def try_out(workload, own_step: Callable | None, model: nn.Module, train_set) -> None:
    """Before a mode wraps the model: a forward and backward pass with two examples, and with EPOCHS or EVALUATE a
    validation. The model is unchanged. Raises UserError if outputs and targets do not match, the loss is not a scalar,
    a trained parameter gets no gradient, or the outputs cannot be scored."""
    config = workload.config
    inputs, targets = (batch.chunks(item, 1)[0] for item in train_set[np.arange(min(2, len(train_set)))][:2])
    inputs, targets = workload.prepare(inputs), batch.moved(targets, workload.device)
    if not config.evaluate:
        with restored_state(workload, model):
            silent = silent_parameters(workload, model, inputs, targets)
        if silent:
            names = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
            raise UserError(
                f"MODEL={config.model}: {names} get no gradient, but DDP needs one for every trained parameter: "
                f"use them in the forward pass, remove them, or use FREEZE={','.join(silent[:4])}"
            )
    if config.epochs or config.evaluate:
        with restored_state(workload, model), torch.no_grad():
            try_validation(workload, own_step, model, inputs, targets, train_set)


@contextlib.contextmanager
def restored_state(workload, model: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients and random numbers afterwards."""
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
    with explain_errors(workload, model, "trained", inputs, targets):
        outputs, loss = workload.step(model, inputs, targets, functools.partial(checked_loss, workload))
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise UserError(f"the loss is {shape_of(loss)}, not a single number: return the mean over the batch")
        if workload.config.epochs:
            workload.count(batch.in_float32(outputs), targets)
    if not loss.requires_grad:
        raise UserError(f"MODEL={workload.config.model}: the loss does not depend on any trained parameter")
    loss.backward()
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def try_validation(workload, own_step: Callable | None, model: nn.Module, inputs, targets, train_set) -> None:
    """A validation calls ``model(inputs)``, or ``step`` if that or the score fails: only ``step`` knows how to call a
    model of several inputs."""

    def by_step(model: nn.Module, inputs, targets):
        targets = batch.moved(train_set[np.arange(1)][1], workload.device) if targets is None else targets
        return workload.step(model, inputs, targets, workload.loss)[0]

    def validate() -> None:
        with explain_errors(workload, model, "validated", inputs, targets):
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
def explain_errors(workload, model: nn.Module, what: str, inputs, targets) -> Iterator[None]:
    """Turn errors into a UserError with the shapes. what: "trained" or "validated"."""
    shapes = f"inputs {shape_of(inputs)}, targets {shape_of(targets)}"
    words = f"MODEL={workload.config.model} cannot be {what} on DATA={workload.config.data}"
    seen = []
    hook = model.register_forward_hook(lambda module, given, output: seen.append(output))
    try:
        yield
    except UserError as error:
        raise UserError(f"{words}: {error}") from None
    except (Exception, SystemExit) as error:  # user code can raise anything
        known = f", outputs {shape_of(seen[-1])}" if seen else ""
        alone = isinstance(batch.opened(inputs), torch.Tensor) or hasattr(find_own_module(workload.config), "step")
        hint = "" if alone else ": for a model of several inputs write a function step(model, inputs, targets)"
        raise UserError(f"{words}: {error_line(error)} ({shapes}{known}){hint}") from error
    finally:
        hook.remove()


def checked_loss(workload, outputs, targets) -> torch.Tensor:
    """The loss. A workload's own loss is called only with matching shapes: others may be broadcast, and a class without
    an output crashes a GPU's process."""
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor) and hasattr(workload.loss, "__self__"):
        if targets.is_floating_point() and outputs.shape != targets.shape:
            raise UserError(f"outputs {shape_of(outputs)} do not fit targets {shape_of(targets)}")
        if not targets.is_floating_point():
            dim = -1 if workload.info.name == "text" else 1
            classes = outputs.shape[dim] if outputs.dim() > 1 else 0
            if int(targets.max()) >= classes or int(targets.min()) < 0:
                raise UserError(f"outputs {shape_of(outputs)} are for {classes} classes, but the targets "
                                f"{shape_of(targets)} have class {int(targets.max())}")  # fmt: skip
    return workload.loss(outputs, targets)


def shape_of(item) -> str:
    """``[2, 10]``, ``([2, 3], [2])``, ``{ids: [2, 8]}``; the type's name for other objects."""
    item = batch.opened(item)
    if isinstance(item, torch.Tensor):
        return str(list(item.shape))
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{name}: {shape_of(part)}" for name, part in item.items()) + "}"
    return f"({', '.join(map(shape_of, item))})" if isinstance(item, tuple | list) else type(item).__name__
