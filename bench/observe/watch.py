"""A Watch attaches to any training script, and says which of the known mistakes it makes.

    from bench.observe import Watch

    watch = Watch(model, optimizer)            # once both are wrapped: one process, DataParallel, DDP or Horovod
    for epoch in range(epochs):
        for images, labels in watch(loader):   # every epoch
            ...
    watch.report()                             # on every rank; rank 0 prints

The training stays bit-identical. The ranks speak to each other in ``report`` alone.

What is seen is seen by probes, one class each (bench/observe/probe.py); to add one, name it in ``PROBES``.
"""

import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from bench import mistakes
from bench.errors import UserError
from bench.mistakes import Finding
from bench.modes import collectives
from bench.observe.counts import Counts, DataWaits
from bench.observe.draws import Draws
from bench.observe.gradients import Gradients
from bench.observe.loads import LoadedWeights
from bench.observe.metrics import Metrics, Rates
from bench.observe.norms import Norms
from bench.observe.probe import Probe, Unheard
from bench.observe.streams import Augmentation, StepRandom
from bench.observe.together import put_together
from bench.observe.view import View, view_of
from bench.observe.waits import Waits
from bench.observe.weights import Weights
from bench.observe.writers import WrittenFiles

# In this order they are told what happens; when a batch is there, DataWaits is the first to look at the clock.
PROBES: tuple[type[Probe], ...] = (
    DataWaits, WrittenFiles, LoadedWeights, Weights, Gradients, Rates, Counts, Norms, Metrics, Draws, Augmentation,
    StepRandom, Waits,
)  # fmt: skip


class Watch:
    """Beside one process of a script.

    model, optimizer: as the script uses them, wrapped; ``follow`` takes them later, for a Watch that is made at the top
    of a script to see what it loads. lr, lr_batch: the recipe's learning rate, and the global batch that it is for.
    expect: names of findings that are meant so: they are listed as expected, and are none. Raises UserError for what it
    cannot watch.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer=None,
        lr: float | None = None,
        lr_batch: int | None = None,
        expect: Sequence[str] = (),
    ):
        self.recipe = {"lr": lr, "lr_batch": lr_batch} if lr is not None and lr_batch is not None else None
        self.expect = expected(expect)
        self.model = self.optimizer = None
        self.begun, self.hooks, self.failed = False, [], {}
        self.probes = [probe(self) for probe in PROBES]
        self.counts = self.probe(Counts)
        self.told = {}
        if model is not None:
            self.follow(model, optimizer)

    def probe(self, kind: type[Probe]) -> Probe:
        """The probe of a class."""
        return next(probe for probe in self.probes if isinstance(probe, kind))

    def follow(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Watch these from now on. Raises UserError for a model whose parameters are sharded."""
        if any(type(p).__name__ == "DTensor" for p in model.parameters()) or "FullySharded" in type(model).__name__:
            raise UserError("Watch compares replicas, and this model is sharded: no rank holds all of its parameters")
        self.model, self.optimizer = model, optimizer
        self.tell("follow", model, optimizer)
        self.hooks = [
            register_optimizer_step_pre_hook(lambda stepping, *_: self.tell("before_step", stepping)),
            register_optimizer_step_post_hook(lambda stepping, *_: self.tell("after_step", stepping)),
        ]

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return engine()[1]

    @property
    def devices(self) -> int:
        """Devices of this process."""
        return len(getattr(self.model, "device_ids", None) or [0])

    # --- what happens, and who is told ----------------------------------------------------------------------------

    def tell(self, what: str, *arguments) -> None:
        """Call a method of every probe that has it. What it raises ends the probe, and never the script; one that has
        ended is still taken down."""
        if what not in self.told:
            having = [p for p in self.probes if getattr(type(p), what) is not getattr(Probe, what)]
            self.told[what] = [(probe, getattr(probe, what)) for probe in having]
        for probe, method in self.told[what]:
            if probe not in self.failed or what == "close":
                try:
                    method(*arguments)
                except Exception as error:
                    self.fails(probe, error)

    def guarded(self, probe: Probe, function: Callable) -> Callable:
        """A function of a probe that torch or Python will call: it returns None once it or its probe has failed."""

        def call(*arguments, **options):
            if probe not in self.failed:
                try:
                    return function(*arguments, **options)
                except Exception as error:
                    self.fails(probe, error)

        return call

    def fails(self, probe: Probe, error: Exception) -> None:
        """A probe raised: from now on it is deaf."""
        self.failed[probe] = Unheard(f"the probe failed: {type(error).__name__}: {error}")

    def __call__(self, loader) -> View:
        """The loader's batches: one epoch each time that it is walked."""
        return view_of(self, loader)

    def begin(self, loader) -> None:
        """An epoch begins; before the first one, everything has its state from the start."""
        if self.model is None:
            raise UserError("Watch: call follow(model, optimizer) before the first epoch")
        if not self.begun:
            self.begun = True
            self.tell("begin", loader)

    def metric(self, **values) -> None:
        """After each epoch: what this rank would print, as in ``metric(top1=0.93, images=10000, val_images=10000)``.
        images: that were counted for it; val_images: of the whole validation set."""
        self.tell("metric", values)

    # --- the report -----------------------------------------------------------------------------------------------

    def report(self) -> list[Finding]:
        """Put together what the ranks saw: every rank calls it. Rank 0 prints the findings, all return them.

        A finding with a ``question`` may be meant so; those in ``expect`` are left out.
        """
        rank, _, gather = engine()
        parts = gather(self.part())
        known = {"num_devices": len(parts) * self.devices, "exchanges": True, "trains": True}
        joins = {key: join for probe in self.probes for key, join in probe.joins.items()}
        observed, unheard = put_together(parts, known, joins)
        found = mistakes.find(observed)
        if rank == 0:
            print("\n".join(report_lines(found, self.expect, mistakes.unheard(observed, unheard))), flush=True)
        return [finding for finding in found if finding.name not in self.expect]

    def part(self) -> dict:
        """This rank's part; everything is taken down."""
        for hook in self.hooks:
            hook.remove()
        self.tell("close")
        part = {}
        for probe in self.probes:
            seen = {}
            if probe not in self.failed:
                try:
                    seen = probe.part()
                except Exception as error:
                    self.fails(probe, error)
            for key in probe.joins:
                value = self.failed.get(probe) or seen.get(key)
                part[key] = Unheard(probe.silent[key]) if value is None and key in probe.silent else value
        return part


def report_lines(found: list[Finding], expect: Sequence[str], unheard: dict[str, str]) -> list[str]:
    """What rank 0 prints. unheard: mistake -> why it could not be looked for."""
    wrong = [finding for finding in found if finding.name not in expect and not finding.question]
    asked = [finding for finding in found if finding.name not in expect and finding.question]
    meant = [finding.name for finding in found if finding.name in expect]
    seen = [name for name in mistakes.DETECTED if name not in unheard and name not in {f.name for f in found}]
    lines = [f"known mistakes found: {len(wrong)}"]
    lines += [line for finding in (*wrong, *asked) for line in finding.lines()]
    lines += [f"expected: {', '.join(meant)}"] if meant else []
    lines += [f"looked for, clean: {', '.join(seen)}"] if seen else []
    whys = [f"{name} ({why})" if why else name for name, why in unheard.items()]
    return lines + ([f"not observed: {', '.join(whys)}"] if whys else [])


def expected(names: Sequence[str]) -> tuple[str, ...]:
    """The names of ``expect``. Raises UserError for one that is no mistake's."""
    names = (names,) if isinstance(names, str) else tuple(names)
    if unknown := [name for name in names if name not in mistakes.DETECTED]:
        raise UserError(f"Watch(expect=): {unknown[0]} is none of {', '.join(mistakes.DETECTED)}")
    return names


def engine() -> tuple:
    """Rank, number of ranks, and a function that gathers an item of every rank, of what is initialised here."""
    horovod = sys.modules.get("horovod.torch")
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), collectives.gather
    if horovod and horovod.is_initialized():
        return horovod.rank(), horovod.size(), horovod.allgather_object
    return 0, 1, lambda item: [item]
