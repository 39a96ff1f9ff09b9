"""A simulated step: ``Trainer.take_step`` with tensors that have shapes but no data (torch's FakeTensorMode), which
records every allocation and release of memory in forward, backward and the optimizer's step."""

import functools
import itertools
import logging
import weakref
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bench.config.data_sets import info_of
from bench.config.modes import MODES
from bench.config.options import KNOBS, UNSET, RunConfig, to_dict, unchecked
from bench.errors import UserError
from bench.modes import load_mode
from bench.predict.step.engines import owners as zero1_owners
from bench.profile.memory_parts import Trace
from bench.structure import blocks_of, each, tensors
from bench.training.examine import holdings
from bench.training.loop import Trainer, build_optimizer
from bench.training.script import Script
from bench.workload import load_workload, own_code

# Options that do not change the memory of a step, or are added in plan.py, and need data or several devices.
LEFT_OUT = {"epochs": 0, "ema": None, "swa": None, "loss_guard": None, "fault": None, "pretrained": None,
            "profile": False, "memory": False, "compile": False, "mistake": "none", "share_gpu": False,
            "gpu_ids": None, "mode": "single", "num_devices": 1, "launcher": "in-process", "cudnn_benchmark": False,
            "storage_ms": UNSET["storage_ms"], "memory_gib": None,
            **{name: UNSET[name] for name in KNOBS}}  # fmt: skip
STEPPING, STEPPED = "optimizer.step", "after optimizer.step"


class Block(NamedTuple):
    """A unit of FSDP. begin, end: index of the first event in its forward pass, and after it. weights: bytes.
    gradients: their places."""

    begin: int
    end: int
    weights: int
    gradients: set[int]


class Share(NamedTuple):
    """A rank's optimizer step under zero1. state: place -> bytes of the optimizer's state."""

    events: list[tuple[int, int]]
    state: dict[int, int]


class Step(NamedTuple):
    """phases: (index of its first event, name). output: bytes of the model's output. blocks: where the mode shards
    weights. shares: of each rank, where it shards only the optimizer's state."""

    trace: Trace
    phases: list[tuple[int, str]]
    output: int
    blocks: tuple[Block, ...] = ()
    shares: tuple[Share, ...] = ()

    def begin(self, phase: str) -> int:
        return next(index for index, name in self.phases if name == phase)


class Coming(TorchDispatchMode):
    """Records events (place, ± bytes) for the memory of every tensor that an operation returns. Places are numbers in
    the order of allocation, so two equal steps have equal places."""

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
        """Of the memory that a tensor shares with its views."""
        return self.there[tensor.untyped_storage()._cdata][0]


def simulate(config: RunConfig, num_outputs: int, replicas: int = 1) -> Step:
    """The second of two steps on one device, when the optimizer has its state.

    config: resolved; of its mode only the sharding matters. replicas: of DataParallel on a CPU, on a batch each. Raises
    UserError as building the model does, and if a custom model's step depends on data.
    """
    norm = "batch" if config.norm == "sync" else config.norm  # same memory
    shards = MODES[config.mode].shards
    owners = config.num_devices if shards == ("optimizer state",) else 0
    several = {"mode": config.mode, "num_devices": replicas} if replicas > 1 else {}  # devices of one process
    planned = unchecked(to_dict(config) | LEFT_OUT | {"norm": norm} | several)
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # logs a traceback of shapes that do not fit
    before, logger.disabled = logger.disabled, True
    try:
        return simulated(planned, num_outputs, replicas, "weights" in shards, owners)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not (own_code.find_own_module(config) or ":" in (config.model or "")):
            raise
        why = own_code.why_not_simulated(error)
        raise UserError(
            f"the memory of MODEL={config.model} cannot be predicted: {why}. MEMORY=1 measures it in a run"
        ) from error
    finally:
        logger.disabled = before


@functools.lru_cache(maxsize=64)  # modes share their steps
def simulated(config: RunConfig, num_outputs: int, replicas: int, blocks: bool = False, owners: int = 0) -> Step:
    """blocks: record those of the model. owners: ranks that share the optimizer's state."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    on_gpu, info = config.device == "cuda", info_of(config.data)
    as_it_is = info.numbers or info.workload != "images"
    planned = unchecked(to_dict(config) | {"device": "cpu"})
    phases, coming = [], Coming()

    def begin(name: str) -> None:
        phases.append((len(coming.events), name))

    workload = load_workload(planned, torch.device("cpu"))
    shapes = workload.planned(config.per_device_batch * config.accumulate * replicas)
    with FakeTensorMode(allow_non_fake_inputs=True), coming:  # made by the user's file
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
        trainer.scaler = torch.amp.GradScaler("cpu", enabled=False)  # it needs data
        outputs = []
        parts = [block for _, block in blocks_of(models[0])] if blocks else []
        marks = [[] for _ in parts]  # of each block, the events before each forward pass and its end
        for part, moments in zip(parts, marks, strict=True):
            for register in (part.register_forward_pre_hook, part.register_forward_hook):
                register(lambda *_, moments=moments: moments.append(len(coming.events)))
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
            own = [dict(group, params=zero1_owners(group["params"], owners, torch.numel)[rank])
                   for group in optimizer.param_groups]  # fmt: skip
            own = [group for group in own if group["params"]]
            shares.append(share_of(optimizer_of(planned, plain, own, on_gpu), coming) if own else Share([], {}))
        hook.remove()
        sizes = [sum(p.nbytes for p in part.parameters()) for part in parts]
        places = [{coming.place_of(p.grad) for p in part.parameters() if p.grad is not None} for part in parts]
    if on_gpu and not as_it_is:
        after.pop(coming.place_of(raw), None)  # bytes, freed when converted to floats
    # The gradients of the step before are freed first. There is no peak, and views of buckets are not freed.
    going = [i for i, (place, size) in enumerate(seen) if place in older and size < 0][: len(older)]
    events = [event for i, event in enumerate(seen) if i not in set(going)]

    def now(index: int) -> int:
        return index - sum(i < index for i in going)

    phases = [(now(index), name) for index, name in phases]
    found = [Block(now(begin), now(end), *rest) for (*_, begin, end), *rest in zip(marks, sizes, places, strict=True)]
    return Step(Trace(events, after, noted | known, noted), phases, outputs[-1], tuple(found), tuple(shares))


def optimizer_of(config: RunConfig, model, groups: list | None, on_gpu: bool) -> torch.optim.Optimizer:
    optimizer = build_optimizer(config, model, groups)
    if on_gpu and not config.fused:  # torch's default on GPUs, with copies of all parameters
        for group in optimizer.param_groups:
            group["foreach"] = True
    return optimizer


def prepared(config: RunConfig, raw, as_it_is: bool):
    """A function, so that its intermediate images are freed after the batch of the step before."""
    images = raw if as_it_is else raw.float()
    last = config.channels_last and isinstance(images, torch.Tensor) and images.dim() == 4
    return images.contiguous(memory_format=torch.channels_last) if last else images


def share_of(optimizer: torch.optim.Optimizer, coming: Coming) -> Share:
    """The second step of an optimizer with a part of the parameters, which have gradients."""
    optimizer.step()
    before = len(coming.events)
    optimizer.step()
    events = coming.events[before:]
    own = {place for place, size in events if size > 0}  # not what else is freed meanwhile
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if torch.is_tensor(value)]
    sizes = {coming.place_of(value): value.untyped_storage().nbytes() for value in state}
    return Share([event for event in events if event[0] in own], sizes)


class Unlike(Exception):
    """Two simulated steps that have different tensors."""


def between(first: Step, second: Step, batches: tuple[int, int], batch: int) -> Step:
    """The step of another batch, with the size of each tensor on a line through two simulated steps. Exact, because
    sizes are linear in the batch. Raises Unlike."""
    a, b = first.trace, second.trace
    same = [(place, size > 0) for place, size in a.events] == [(place, size > 0) for place, size in b.events]
    if not same or a.after.keys() != b.after.keys() or a.kinds != b.kinds:
        raise Unlike

    def size(one: int, other: int) -> int:
        return one + (other - one) * (batch - batches[0]) // (batches[1] - batches[0])

    events = [(place, size(one, other)) for (place, one), (_, other) in zip(a.events, b.events, strict=True)]
    after = {place: size(one, b.after[place]) for place, one in a.after.items()}
    return first._replace(trace=a._replace(events=events, after=after), output=size(first.output, second.output))
