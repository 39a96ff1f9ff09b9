"""A Watch attaches to any training script and reports the known mistakes that it finds.

    from bench.observe import Watch

    watch = Watch(model, optimizer)            # once both are wrapped: one process, DataParallel, DDP or Horovod
    for epoch in range(epochs):
        for images, labels in watch(loader):   # every epoch
            ...
    watch.report()                             # on every rank; rank 0 prints

The training stays bit-identical. The ranks communicate only in ``report``, and when the training hangs.
"""

import atexit
import contextlib
import multiprocessing.util
import os
import sys
from collections.abc import Callable, Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from bench import mistakes
from bench.errors import UserError, shortened
from bench.mistakes import Finding
from bench.observe.counts import Counts, DataWaits
from bench.observe.draws import Draws
from bench.observe.gradients import Gradients, Passes, ZeroGrads
from bench.observe.hang import Hang, failure_of_process
from bench.observe.loads import LoadedWeights, Unloaded
from bench.observe.memory import Contexts, MemoryGrowth
from bench.observe.metrics import Losses, Metrics
from bench.observe.probe import NotObserved, Probe, held_by, join_parts, uncompiled
from bench.observe.ranks import Ranks, launched
from bench.observe.schedules import Rates, Schedules
from bench.observe.streams import Augmentation, StepRandom
from bench.observe.validations import AfterValidation, EvalMode, Evaluations
from bench.observe.view import View, view_of
from bench.observe.waits import Waits
from bench.observe.weights import Norms, Others, Parameters, Restored, Weights
from bench.observe.writers import WrittenFiles

# They are notified in this order: DataWaits comes first, to read the clock as soon as a batch has arrived.
PROBES: tuple[type[Probe], ...] = (
    DataWaits, Hang, WrittenFiles, LoadedWeights, Weights, Restored, Others, Parameters, Passes, Gradients, ZeroGrads,
    Rates, Schedules, Evaluations, Counts, Norms, Metrics, Losses, MemoryGrowth, Contexts, Draws, Augmentation,
    StepRandom, Waits, Unloaded, EvalMode, AfterValidation,
)  # fmt: skip
# The keys that one rank can judge without the others.
ALONE = ("num_devices", "trains", "exchanges", "group", "host_syncs", "loads", "norm", "loader", "parameters", "passes",
         "hang", "zero_grad", "device", "memory", "contexts")  # fmt: skip


class Watch:
    """Observes one process of a script.

    model, optimizer: as the script uses them, wrapped; several optimizers as a list. ``follow`` takes them later, for a
    Watch that is created at the top of a script to observe what it loads. lr, lr_batch: the recipe's learning rate, and
    its global batch. expect: names of intended mistakes, which are only listed as expected. others: further modules
    that should be the same on all ranks, by name. hang_s: seconds without a batch or a step after which the ranks
    report their places (at least ten times the longest observed wait); ``report`` waits as long for the other ranks.
    Raises UserError for objects that it cannot watch.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer=None,
        lr: float | None = None,
        lr_batch: int | None = None,
        expect: Sequence[str] = (),
        others: dict | None = None,
        hang_s: float = 60.0,
    ):
        self.recipe = {"lr": lr, "lr_batch": lr_batch} if lr is not None and lr_batch is not None else None
        self.expect = (expect,) if isinstance(expect, str) else tuple(expect)
        if unknown := [name for name in self.expect if name not in mistakes.DETECTED]:
            raise UserError(f"Watch(expect=): unknown mistake {unknown[0]}: use one of {', '.join(mistakes.DETECTED)}")
        self.others, self.hang_s = dict(others or {}), hang_s
        made[0] += 1
        self.number, self.world, self.pid = made[0], Ranks(), os.getpid()
        self.model, self.optimizers, self.ddp_models = None, [], []
        self.begun, self.reported, self.stepping = False, None, 0
        self.cut = False  # whether the training was interrupted
        self.hooks, self.failed, self.methods = [], {}, {}
        if model is not None or optimizer is not None:
            checked(model, optimizer)
        self.probes = [probe(self) for probe in PROBES]
        self.counts = self.probe(Counts)
        if model is not None:
            self.follow(model, optimizer)

    def probe(self, kind: type[Probe]) -> Probe:
        return next(probe for probe in self.probes if isinstance(probe, kind))

    def follow(self, model: nn.Module, optimizer, others: dict | None = None) -> None:
        """Watch these from now on. Raises UserError for other objects, and for sharded models."""
        self.optimizers = checked(model, optimizer)
        self.model, self.held = model, {}
        self.ddp_models = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
        self.others |= others or {}
        self.world.look()
        self.notify("follow", model, optimizer)
        if not self.hooks:
            self.listen()

    def listen(self) -> None:
        self.hooks = [register_optimizer_step_pre_hook(uncompiled(self.before_step))]
        self.hooks += [register_optimizer_step_post_hook(uncompiled(self.after_step))]
        exits.append(self)
        if multiprocessing.parent_process():  # such a process ends without atexit
            multiprocessing.util.Finalize(None, at_exit, exitpriority=0)

    def before_step(self, optimizer, arguments, options) -> None:
        """A step within a step comes from Horovod or another wrapper."""
        self.stepping += 1
        self.notify("before_step", optimizer)

    def after_step(self, optimizer, arguments, options) -> None:
        self.stepping = max(0, self.stepping - 1)
        self.notify("after_step", optimizer)

    def steps_model(self, optimizer) -> bool:
        if id(optimizer) not in self.held:
            own = {id(p) for p in self.model.parameters()}
            self.held[id(optimizer)] = not own.isdisjoint(held_by(optimizer))
        return self.held[id(optimizer)]

    def outside(self) -> dict[str, nn.Parameter]:
        """The parameters that the watched optimizers train outside the model, by their position."""
        own, found = {id(p) for p in self.model.parameters()}, {}
        for number, optimizer in enumerate(self.optimizers, 1):
            name = type(optimizer).__name__ + (f" {number}" if len(self.optimizers) > 1 else "")
            for at, group in enumerate(optimizer.param_groups):
                for place, p in enumerate(group["params"]):
                    if id(p) not in own:
                        shape = " × ".join(map(str, p.shape)) or "a number"
                        found[f"{name}.param_groups[{at}]['params'][{place}] ({shape})"] = p
        return found

    @property
    def devices(self) -> int:
        return max(len(getattr(each, "device_ids", None) or [0]) for each in self.model.modules())

    @property
    def models(self) -> list[list[nn.Module]]:
        """Each model with the models that it wraps; the last one is plain. For a module that holds wrapped models,
        these."""
        several = self.model if isinstance(self.model, nn.ModuleList) else [self.model]
        return [layers_of(each) for model in several for each in wrapped_in(model)]

    @property
    def training(self) -> bool:
        """Whether the model is in training mode, or one of several; True until they are known."""
        return self.model is None or any(layers[-1].training for layers in self.models)

    # --- notifications of the checks --------------------------------------------------------------------------------

    def notify(self, what: str, *arguments) -> None:
        """Call a method of every probe that has it. An exception disables the probe, and never reaches the script."""
        methods = self.methods.get(what)
        if methods is None:
            having = [probe for probe in self.probes if hasattr(type(probe), what) and probe not in self.failed]
            methods = self.methods[what] = [(probe, getattr(probe, what)) for probe in having]
        for probe, method in methods:
            try:
                method(*arguments)
            except Exception as error:
                self.disable_probe(probe, error)

    def guarded(self, probe: Probe, function: Callable) -> Callable:
        """A function of a probe for torch or Python to call: it returns None once it or its probe has failed."""

        def call(*arguments, **options):
            if probe not in self.failed:
                try:
                    return function(*arguments, **options)
                except Exception as error:
                    self.disable_probe(probe, error)

        return uncompiled(call)

    def disable_probe(self, probe: Probe, error: Exception) -> None:
        self.failed.setdefault(probe, NotObserved(failure(error)))
        self.methods = {}

    def __call__(self, loader) -> View:
        """The loader's batches, one epoch per iteration. Raises UserError if it is not iterable."""
        if isinstance(loader, nn.Module) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
            raise UserError(f"watch(loader) needs an iterable of batches, not a {type(loader).__name__}")
        return view_of(self, loader)

    def begin(self, loader) -> None:
        if self.model is None:
            raise UserError("Watch: call follow(model, optimizer) before the first epoch")
        if not self.begun and self.reported is None:
            self.begun = True
            self.world.look()
            self.notify("begin", loader)
            self.notify("start")

    def metric(self, **values) -> None:
        """Call it after each epoch with this rank's metrics: ``metric(top1=0.93, images=10000, val_images=10000)``.
        images: counted for the metric; val_images: in the whole validation set. Raises UserError if a value is not a
        number."""
        numbers = {}
        for name, value in values.items():
            try:
                numbers[name] = (int if name in ("images", "val_images") else float)(value)
            except (TypeError, ValueError, RuntimeError):
                raise UserError(
                    f"Watch.metric: {name}={shortened(repr(value))} is not a number: pass a number"
                ) from None
        self.notify("metric", numbers)

    # --- the report -----------------------------------------------------------------------------------------------

    def report(self) -> list[Finding]:
        """Combine the ranks' observations: every rank calls it. Rank 0 prints the mistakes found, all return them.

        A finding with a ``question`` may be intended; those in ``expect`` are left out. If the ranks cannot meet, each
        prints the reason in one line, and its own observations. A second call returns the same list.
        """
        if self.reported is not None:
            return self.reported
        self.reported = []
        if self in exits:
            exits.remove(self)
        own, hang = self.part(), self.probe(Hang)
        try:
            limit_s = hang.limit_s + min(5.0, self.hang_s)
            observed, reasons = self.world.join_over_ranks(own, join, limit_s, hang.ended_because)
            prints, first = self.number_of() == 0, ""
        except NotObserved as why:
            (observed, reasons), prints = observe_one_rank(own | hang.part(), str(why)), True
            first = f"Watch: rank {self.world.rank} reports only itself: {why}; every rank must call report()"
        hang.over.set()
        return self.say(observed, reasons, first) if prints else self.keep(observed)

    def number_of(self) -> int:
        started = launched()
        return started[2] if started and not self.world.joined else self.world.rank

    def keep(self, observed: dict) -> list[Finding]:
        for listener in listeners:
            listener(self, observed)
        self.reported = [finding for finding in mistakes.find(observed) if finding.name not in self.expect]
        return self.reported

    def say(self, observed: dict, reasons: dict[str, str], first: str = "", to=None) -> list[Finding]:
        """Print the findings, and return those that are not expected."""
        found = mistakes.find(observed)
        lines = report_lines(found, self.expect, mistakes.unobserved_reasons(observed, reasons))
        print("\n".join([first, *lines] if first else lines), file=to, flush=True)
        return self.keep(observed)

    def part(self) -> dict:
        self.world.look()
        for hook in self.hooks:
            hook.remove()
        for probe in self.probes:
            try:
                probe.close()
            except Exception as error:
                self.disable_probe(probe, error)
        started = launched()
        device = next((p.device.type for p in self.model.parameters()), None) if self.model is not None else None
        part = {"devices": 1 if self.model is None else self.devices, "device": device, "group": {
            "joined": self.world.joined, "launched": started and {"variable": started[0], "processes": started[1]},
        }}  # fmt: skip
        for probe in self.probes:
            seen = {}
            if probe not in self.failed:
                try:
                    seen = probe.part()
                except NotObserved as why:
                    seen = dict.fromkeys(probe.joins, why)
                except Exception as error:
                    self.disable_probe(probe, error)
            for key in probe.joins:
                value = self.failed.get(probe) or seen.get(key)
                part[key] = NotObserved(probe.silent[key]) if value is None and key in probe.silent else value
        return part

    def exit(self) -> None:
        if self.reported is None and self.begun and os.getpid() == self.pid:
            hang = self.probe(Hang)
            hang.end_of_process(failure_of_process(), hang.steps)
            why = "report was not called"
            observed, reasons = observe_one_rank(self.part(), why)
            first = f"Watch: {why} on rank {self.number_of()}; its own observations:"
            self.say(observed, reasons, first, sys.stderr)


made = [0]  # Watches of this process
listeners: list[Callable] = []  # called with a reporting Watch and the observations of all ranks
exits: list[Watch] = []  # those that have not reported


@atexit.register
def at_exit() -> None:
    for watch in tuple(exits):
        with contextlib.suppress(Exception):
            watch.exit()
    exits.clear()


def join(parts: list[dict]) -> tuple[dict, dict[str, str]]:
    """``observed`` from all ranks' parts, and the reasons for missing keys. A failing join loses only its key."""
    joins = {key: guarded_join(each) for probe in PROBES for key, each in probe.joins.items()}
    devices, first = sum(part["devices"] for part in parts), parts[0]
    known = {"num_devices": devices, "device": first["device"], "exchanges": True, "trains": True,
             "group": first["group"]}  # fmt: skip
    return join_parts(parts, known, joins)


def guarded_join(join: Callable) -> Callable:
    """A join whose exception becomes a reason instead of an error in the script."""

    def joined(parts: list):
        try:
            return join(parts)
        except NotObserved:
            raise
        except Exception as error:
            raise NotObserved(failure(error)) from None

    return joined


def observe_one_rank(part: dict, why: str) -> tuple[dict, dict[str, str]]:
    """``observed`` of one rank: only the keys that can be checked without the others."""
    observed, reasons = join([part])
    apart = {key: why for key in observed if key not in ALONE}
    return {key: value for key, value in observed.items() if key in ALONE}, reasons | apart


def wrapped_in(model: nn.Module) -> list[nn.Module]:
    if len(layers_of(model)) > 1:
        return [model]
    found = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
    return found or [model]


def layers_of(model: nn.Module) -> list[nn.Module]:
    layers = [model]
    while isinstance(model, DistributedDataParallel | nn.DataParallel) or "_orig_mod" in model._modules:
        model = model._modules["_orig_mod" if "_orig_mod" in model._modules else "module"]
        layers.append(model)
    return layers


def checked(model, optimizer) -> list:
    """The optimizers. Raises UserError, in one line, if these are not a model and optimizers."""
    if not isinstance(model, nn.Module):
        if isinstance(optimizer, nn.Module):
            raise UserError("Watch(model, optimizer): the first argument must be the model")
        what = "a loader, which goes to watch(loader)" if isinstance(model, DataLoader) else type(model).__name__
        raise UserError(f"Watch(model, optimizer): the first argument must be an nn.Module, not {what}")
    if optimizer is None:
        raise UserError("Watch(model, optimizer): the optimizer is missing")
    sharded = any("FullySharded" in type(each).__name__ for each in model.modules())
    if sharded or any(type(p).__name__ == "DTensor" for p in model.parameters()):
        raise UserError("Watch compares replicas, but this model is sharded: no rank holds all its parameters")
    found = []
    for each in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
        inner = each
        while inner is not None and not isinstance(getattr(inner, "param_groups", None), list):
            names = ("optimizer", "optim", "base_optimizer", "_optimizer")
            wraps = {} if isinstance(inner, LRScheduler | DataLoader) else getattr(inner, "__dict__", {})
            inner = next((wraps[name] for name in names if wraps.get(name) is not None), None)
        if inner is None:
            raise UserError(
                f"Watch(model, optimizer): the second argument must be the optimizer, not {type(each).__name__}"
            )
        found.append(inner)
    return found


def failure(error: Exception) -> str:
    return f"the probe failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def report_lines(found: list[Finding], expect: Sequence[str], reasons: dict[str, str]) -> list[str]:
    """The lines that rank 0 prints. reasons: mistake -> why it could not be checked."""
    wrong = [finding for finding in found if finding.name not in expect and not finding.question]
    asked = [finding for finding in found if finding.name not in expect and finding.question]
    meant = [finding.name for finding in found if finding.name in expect]
    said = {finding.name for finding in found} | mistakes.explained_by(found) | set(reasons)
    seen = [name for name in mistakes.DETECTED if name not in said]
    lines = [f"known mistakes found: {len(wrong)}"]
    lines += [line for finding in wrong for line in finding.lines()]
    lines += [f"possible mistakes (confirm, or pass expect=): {len(asked)}"] if asked else []
    lines += [line for finding in asked for line in finding.lines()]
    lines += [f"expected: {', '.join(meant)}"] if meant else []
    lines += [f"checked, not found: {', '.join(seen)}"] if seen else []
    whys = [f"{name} ({why})" if why else name for name, why in reasons.items()]
    return lines + ([f"not observed: {', '.join(whys)}"] if whys else [])
