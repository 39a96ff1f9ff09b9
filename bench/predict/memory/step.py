"""One step, simulated: every tensor that comes or goes in it, with its size, before anything is trained.

The project's own step (``Trainer.take_step``, with its model, precision, frozen parameters and optimizer) is taken with
tensors that have shapes and no numbers (torch's FakeTensorMode), and each one that comes or goes is noted, in the
forward pass, the backward pass and the optimizer's step.
"""

import contextlib
import functools
import itertools
import logging
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bench.config.data_sets import info_of
from bench.config.modes import MODES
from bench.config.options import KNOBS, UNSET, RunConfig, to_dict, unchecked
from bench.config.sections import Execution
from bench.errors import UserError
from bench.measure.memory_parts import Trace
from bench.modes import load_mode
from bench.predict.memory.shards import Share, dealt
from bench.structure import blocks_of, each, tensors
from bench.training.holdings import holdings
from bench.training.loop import Trainer, build_optimizer
from bench.training.script import Script
from bench.workload import load_workload, own_code

# What changes no memory of a step, or is counted by itself, and needs what a step without numbers has not.
LEFT_OUT = {"epochs": 0, "ema": None, "swa": None, "loss_guard": None, "fault": None, "pretrained": None,
            "profile": False, "memory": False, "compile": False, "mistake": "none", "share_gpu": False,
            "gpu_ids": None, "mode": "single", "num_devices": 1, "launcher": "in-process", "cudnn_benchmark": False,
            "storage_ms": UNSET["storage_ms"],
            **{name: UNSET[name] for name in KNOBS}}  # fmt: skip
STEPPING, STEPPED = "optimizer.step", "after optimizer.step"


class Block(NamedTuple):
    """A block of the model that is sharded as one. begin, end: how many allocations came before its forward pass and
    before the end of that. weights: bytes. gradients: their places."""

    begin: int
    end: int
    weights: int
    gradients: set[int]


class Step(NamedTuple):
    """A simulated step. trace: its allocations. phases: (how many of them came before it, name). output: bytes of the
    model's output. blocks: in their order, where the mode shards weights. shares: of each rank, where it shards the
    optimizer's state alone."""

    trace: Trace
    phases: list[tuple[int, str]]
    output: int
    blocks: tuple[Block, ...] = ()
    shares: tuple[Share, ...] = ()

    def begin(self, phase: str) -> int:
        """How many allocations came before a phase."""
        return next(index for index, name in self.phases if name == phase)


class Coming(TorchDispatchMode):
    """Notes the memory of every tensor that an operation returns, and when it goes.

    events: (number, bytes). Memory is numbered in the order of its coming: two steps that do the same have the same
    numbers.
    """

    def __init__(self):
        super().__init__()
        self.events, self.numbers, self.there = [], itertools.count(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.there:
                storage, number = tensor.untyped_storage(), next(self.numbers)
                self.there[storage._cdata] = number, storage.nbytes()
                self.events.append((number, storage.nbytes()))
                weakref.finalize(storage, self.gone, storage._cdata)
        return out

    def gone(self, key: int) -> None:
        number, size = self.there.pop(key)
        self.events.append((number, -size))

    def place_of(self, tensor: torch.Tensor) -> int:
        """The number of the memory that a tensor shares with its views."""
        return self.there[tensor.untyped_storage()._cdata][0]


def simulate(config: RunConfig, num_outputs: int, replicas: int = 1) -> Step:
    """The second of two steps on one device, when the optimizer has its state.

    config: resolved; of its mode only this is asked: what it shards. replicas: of the CPU's DataParallel, on a batch
    for each. Raises UserError as the model's building does: an unknown model, a size that it cannot take; and where the
    step of a model from elsewhere needs the numbers in its tensors.
    """
    norm = "batch" if config.norm == "sync" else config.norm  # which keeps as much
    shards = MODES[config.mode].shards
    owners = config.num_devices if shards == ("optimizer state",) else 0
    several = {"mode": config.mode, "num_devices": replicas} if replicas > 1 else {}  # devices of one process
    planned = unchecked(to_dict(config) | LEFT_OUT | {"norm": norm} | several)
    try:
        with unlogged("torch._subclasses.fake_tensor"):  # torch logs a traceback of shapes that do not fit
            return simulated(planned, num_outputs, replicas, "weights" in shards, owners)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not (own_code.beside(config) or ":" in (config.model or "")):
            raise
        raise UserError(
            f"the memory of MODEL={config.model} cannot be predicted: {reason(error)}. MEMORY=1 measures it in a run"
        ) from error


@contextlib.contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Turn one logger off."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def reason(error: BaseException) -> str:
    """Why a step could not be simulated, with its place in the user's code."""
    from torch._subclasses import fake_tensor

    if isinstance(error, fake_tensor.DataDependentOutputException | fake_tensor.DynamicOutputShapeException):
        return f"its step depends on the values in its tensors: {own_code.said(error)}"
    return own_code.said(error)


@functools.lru_cache(maxsize=64)  # modes share their steps
def simulated(config: RunConfig, num_outputs: int, replicas: int, blocks: bool = False, owners: int = 0) -> Step:
    """The same for a config without what makes no difference. blocks: note those of the model. owners: ranks over which
    the optimizer's state is dealt; each one's step is simulated."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    on_gpu, info = config.device == "cuda", info_of(config.data)
    as_it_is = info.numbers or info.workload != "images"
    planned = unchecked(to_dict(config) | {"device": "cpu"})
    phases, coming = [], Coming()

    def begin(name: str) -> None:
        phases.append((len(coming.events), name))

    workload = load_workload(planned, torch.device("cpu"))
    shapes = workload.planned(config.per_device_batch * config.accumulate * replicas)
    with FakeTensorMode(allow_non_fake_inputs=True), coming:  # tensors that the user's file has made before
        workload.num_outputs = num_outputs
        models = [workload.model(planned, 0, lambda sentence: None) for _ in range(replicas)]
        mode = load_mode(planned.mode)(planned)
        model = mode.wrap_replicas(models)
        plain = mode.unwrap(model)
        optimizer = optimizer_of(planned, plain, workload.groups(plain), on_gpu)
        optimizer.register_step_pre_hook(lambda *_: begin(STEPPING))
        optimizer.register_step_post_hook(lambda *_: begin(STEPPED))
        script, status = Script(planned, mode, workload), SimpleNamespace(phase=begin)
        trainer = Trainer(planned, mode, model, optimizer, lambda images: 0.1, status, None, script)
        trainer.scaler = torch.amp.GradScaler("cpu", enabled=False)  # it asks for numbers
        outputs = []
        parts = [block for _, block in blocks_of(models[0])] if blocks else []  # what MODE=fsdp shards as one
        marks = [[] for _ in parts]  # of each block, how many allocations came before its forward passes and their ends
        for part, moments in zip(parts, marks, strict=True):
            part.register_forward_pre_hook(lambda *_, moments=moments: moments.append(len(coming.events)))
            part.register_forward_hook(lambda *_, moments=moments: moments.append(len(coming.events)))
        hook = models[0].register_forward_hook(
            lambda *seen: outputs.append(sum(tensor.untyped_storage().nbytes() for tensor in tensors(seen[2])))
        )
        raw, targets = (each(lambda shape: torch.zeros(shape.shape, dtype=shape.dtype), item) for item in shapes)
        for _ in range(2):
            older = {coming.place_of(tensor) for kind, tensor in holdings(trainer) if kind == "gradients"}
            coming.events.clear(), phases.clear(), [moments.clear() for moments in marks]
            batch = prepared(config, raw, as_it_is)
            trainer.take_step(batch, targets)
            trainer.clock.step_done(0.0)
            noted = {coming.place_of(tensor): "images" for tensor in tensors((raw, batch, targets))}
        known = {coming.place_of(tensor): kind for kind, tensor in reversed(list(holdings(trainer)))}
        after, seen = dict(coming.there.values()), list(coming.events)
        shares = []
        for rank in range(owners):
            own = [dict(group, params=dealt(group["params"], owners)[rank]) for group in optimizer.param_groups]
            own = [group for group in own if group["params"]]
            shares.append(share_of(optimizer_of(planned, plain, own, on_gpu), coming) if own else Share([], {}))
        hook.remove()
        sizes = [sum(p.nbytes for p in part.parameters()) for part in parts]
        places = [{coming.place_of(p.grad) for p in part.parameters() if p.grad is not None} for part in parts]
    if on_gpu and not as_it_is:
        after.pop(coming.place_of(raw), None)  # bytes are sent, and gone when they are numbers
    # The gradients of the step before go first: no peak is there, and with views of buckets nothing goes.
    going = [i for i, (place, size) in enumerate(seen) if place in older and size < 0][: len(older)]
    events = [event for i, event in enumerate(seen) if i not in set(going)]

    def now(index: int) -> int:
        return index - sum(i < index for i in going)

    phases = [(now(index), name) for index, name in phases]
    found = [Block(now(begin), now(end), *rest) for (*_, begin, end), *rest in zip(marks, sizes, places, strict=True)]
    return Step(Trace(events, after, noted | known, noted), phases, outputs[-1], tuple(found), tuple(shares))


def optimizer_of(config: RunConfig, model, groups: list | None, on_gpu: bool) -> torch.optim.Optimizer:
    """The config's optimizer, as it goes about its step on that device."""
    optimizer = build_optimizer(config, model, groups)
    if on_gpu and not config.fused:  # torch's default there: all parameters in few kernels, with copies of them all
        for group in optimizer.param_groups:
            group["foreach"] = True
    return optimizer


def share_of(optimizer: torch.optim.Optimizer, coming: Coming) -> Share:
    """The second step of an optimizer that has some of the parameters, whose gradients are there."""
    optimizer.step()
    before = len(coming.events)
    optimizer.step()
    events = coming.events[before:]
    own = {place for place, size in events if size > 0}  # what else goes meanwhile is not the step's
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if torch.is_tensor(value)]
    sizes = {coming.place_of(value): value.untyped_storage().nbytes() for value in state}
    return Share([event for event in events if event[0] in own], sizes)


def between(first: Step, second: Step, batches: tuple[int, int], batch: int) -> Step | None:
    """The step of another batch, from two that were simulated: every tensor is as large as a line through both says.

    Exact, for a tensor has so many bytes per image, or none. None where the two steps did not do the same.
    """
    a, b = first.trace, second.trace
    if [(place, size > 0) for place, size in a.events] != [(place, size > 0) for place, size in b.events]:
        return None
    if a.after.keys() != b.after.keys() or a.kinds != b.kinds:
        return None

    def size(one: int, other: int) -> int:
        return one + (other - one) * (batch - batches[0]) // (batches[1] - batches[0])

    events = [(place, size(one, other)) for (place, one), (_, other) in zip(a.events, b.events, strict=True)]
    after = {place: size(one, b.after[place]) for place, one in a.after.items()}
    return first._replace(trace=a._replace(events=events, after=after), output=size(first.output, second.output))


def prepared(config: Execution, raw, as_it_is: bool):
    """A batch as the workload prepares it."""
    images = raw if as_it_is else raw.float()
    last = config.channels_last and isinstance(images, torch.Tensor) and images.dim() == 4
    return images.contiguous(memory_format=torch.channels_last) if last else images
