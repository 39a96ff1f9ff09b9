"""One process of a foreign script, timed from inside: steps, waits for data, memory, load, and a Watch's findings.

A step is from the end of one ``optimizer.step()`` to the end of the next, of the optimizer that steps first; a step
within a step is Horovod's or a wrapper's. An interval in which a DataLoader was started anew is no step, for a
validation or a checkpoint may be in it: it is counted apart. What the script computes is not changed, and no random
number is drawn. When the process ends, or ``steps`` are timed, its part lies in the folder that ``bench time`` named.
"""

import atexit
import contextlib
import gc
import json
import multiprocessing.util
import os
import sys
import time
import weakref
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, dataloader

from bench import files, mistakes
from bench.measure import steady
from bench.measure.clock import StepClock
from bench.measure.environment import collect_environment
from bench.measure.load import Load
from bench.measure.memory import MemorySampler
from bench.observe import Watch, watch
from bench.observe.counts import Counts
from bench.observe.ranks import Ranks, launched
from bench.record.privacy import without_paths

MOST_STEPS = 100_000  # timed; later ones are not
MEETING_S = 30.0  # for the other ranks' parts of what a Watch sees
timers: list["Timer"] = []  # of this process: one at the most


def made(optimizer, asked: str) -> None:
    """The script has made an optimizer; the first one begins the timing. asked: as a Timer takes it, as JSON."""
    if not timers:
        timers.append(Timer(json.loads(asked)))
    timers[0].optimizers.append(weakref.ref(optimizer))


class Silent(Watch):
    """A Watch that prints nothing, and knows how long it took. said: what it would have: observed, and mistake -> why
    it was not looked for."""

    said, spent_s = None, 0.0

    def tell(self, what: str, *arguments) -> None:
        began = time.perf_counter()
        super().tell(what, *arguments)
        self.spent_s += time.perf_counter() - began

    def say(self, observed: dict, unheard: dict, first: str = "", to=None) -> list:
        self.said = observed, mistakes.unheard(observed, unheard)
        return self.keep(observed)


class Timer:
    """asked: folder, warmup, steps (None: to the end), watch (whether to look for mistakes)."""

    def __init__(self, asked: dict):
        self.asked, self.pid, self.ended = asked, os.getpid(), False
        self.optimizers, self.first, self.depth = [], None, 0
        self.taken, self.numbers, self.watch_s, self.between_s = 0, [], [], []
        self.wait_s, self.anew, self.at, self.spent_s, self.inside = 0.0, False, 0.0, 0.0, False
        self.clock = self.sampler = self.load = self.model = self.own = None
        self.heard, self.images, self.why = None, None, ""
        self.world = Ranks()
        watch.hearers.append(self.hear)
        self.hooks = [register_optimizer_step_pre_hook(self.before_step)]
        self.hooks += [register_optimizer_step_post_hook(self.after_step)]
        self.patched = DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__
        self.patch(*self.patched)
        atexit.register(self.finish)  # before what ends the groups, which were made earlier
        if multiprocessing.parent_process():  # such a process ends without what atexit holds
            multiprocessing.util.Finalize(None, self.finish, exitpriority=10)

    def patch(self, begin, following) -> None:
        """Hear of every walk over a DataLoader, and how long its batches are waited for."""

        def iterated(loader):
            return begin(loader) if self.inside or os.getpid() != self.pid else self.walk(loader)

        def waited(iterator):
            began = time.perf_counter()
            try:
                return following(iterator)
            finally:
                self.wait_s += time.perf_counter() - began

        DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__ = iterated, waited

    def walk(self, loader):
        """``iter(loader)``: by the Watch, where there is one of ours."""
        self.anew, self.inside = True, True
        try:
            if self.own is None and not self.why:
                self.attach()
            return iter(self.own(loader) if self.own else loader)
        finally:
            self.inside = False

    # --- the script's model ---------------------------------------------------------------------------------------

    def find_model(self) -> list:
        """The optimizers that are in use, of the outermost module that holds their parameters; sets ``model``. Several
        such modules are several models, and none is set."""
        alive = [optimizer for each in self.optimizers if (optimizer := each()) is not None]
        ours = [each for each in alive if hasattr(each, "_allreduce_grad_async")] or alive
        trained = {id(p) for each in ours for group in each.param_groups for p in group["params"]}
        modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
        holding = [each for each in modules if any(id(p) in trained for p in each.parameters())]
        within = {id(child) for each in holding for child in each.modules() if child is not each}
        roots = [each for each in holding if id(each) not in within]
        if len(roots) != 1:
            raise LookupError(f"{len(roots)} models hold what the optimizers train: add the lines of a Watch")
        self.model = roots[0]
        return ours

    def attach(self) -> None:
        """Begin to watch, unless the script has a Watch itself."""
        try:
            ours = self.find_model()
            if not self.asked["watch"]:
                self.why = "it was not asked for (WATCH=0)"
            elif watch.made[0]:
                self.why = "the script's own Watch did not report"
            else:
                self.own = Silent(self.model, ours, hang_s=MEETING_S)
        except Exception as error:
            self.why = str(error).splitlines()[0] if str(error) else type(error).__name__

    def hear(self, reporting: Watch, observed: dict) -> None:
        """A Watch has reported: ours, or the script's own."""
        self.images = reporting.probe(Counts).images_per_step() or None
        said = reporting.said if isinstance(reporting, Silent) else None
        self.heard = said or (observed, mistakes.unheard(observed, {}))

    # --- steps ----------------------------------------------------------------------------------------------------

    def before_step(self, optimizer, arguments, options) -> None:
        self.depth += 1

    def after_step(self, optimizer, arguments, options) -> None:
        """torch calls it when any optimizer of this process has taken a step."""
        self.depth = max(0, self.depth - 1)
        if self.depth or self.ended or os.getpid() != self.pid:
            return
        try:
            if self.first is None:
                self.first = id(optimizer)
                self.open(optimizer)
            if id(optimizer) == self.first:
                self.step()
        except Exception as error:  # the script goes on
            self.ended = True
            self.say(f"is not timed any more: {type(error).__name__}: {error}")

    def open(self, optimizer) -> None:
        """The first step has been taken: the devices are known."""
        self.world.look()
        if self.model is None:
            with contextlib.suppress(Exception):  # then its engine is not known, and the first device alone
                self.find_model()
        self.devices = [p.device for group in optimizer.param_groups for p in group["params"]][:1]
        if ids := getattr(self.model, "device_ids", None):
            self.devices = [torch.device("cuda", index) for index in ids]
        self.clock = StepClock(self.devices[0], names=("start",))
        self.sampler = MemorySampler(self.devices)
        self.sampler.start()

    def step(self) -> None:
        """A step has ended: what was since the last one?"""
        self.taken += 1
        if self.taken == self.asked["warmup"]:
            self.sampler.mark("timed")
            self.load = Load()
            self.clock.start()
        elif self.taken > self.asked["warmup"] and len(self.numbers) < MOST_STEPS:
            if self.anew:
                self.between_s.append(time.perf_counter() - self.at)
                self.clock.resume()
            else:
                self.clock.step_done(self.wait_s)
                self.numbers.append(self.taken)
                self.watch_s.append(self.watched_s() - self.spent_s)
        self.at, self.wait_s, self.anew, self.spent_s = time.perf_counter(), 0.0, False, self.watched_s()
        if self.asked["steps"] and len(self.numbers) == self.asked["steps"]:
            if self.own:
                self.own.cut = True
            self.finish()
            raise SystemExit(0)

    def watched_s(self) -> float:
        """Seconds that our Watch has taken so far."""
        return self.own.spent_s if self.own else 0.0

    # --- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Leave this process's part, once. What fails is one line, and never the script's."""
        if self.ended or os.getpid() != self.pid or self.first is None:
            return
        self.ended = True
        DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__ = self.patched
        try:
            for hook in self.hooks:
                hook.remove()
            part = self.part()
            path = Path(self.asked["folder"]) / f"part-{part['rank']}-{self.pid}.json"
            with files.written_whole(path) as temporary:
                temporary.write_text(json.dumps(part, allow_nan=False))
        except Exception as error:
            self.say(f"has left no times: {type(error).__name__}: {error}")

    def say(self, what: str) -> None:
        """A line about this process, where its errors go."""
        print(f"bench: process {self.pid} {what}", file=sys.stderr, flush=True)

    def part(self) -> dict:
        """All that this process knows, as JSON can hold it."""
        self.world.look()
        times = self.clock.step_time_s()
        self.sampler.mark("end")
        load = self.load.stop() if self.load else None
        devices = self.sampler.stop()
        if self.own:
            self.own.report()
        started = launched()
        rank, count = self.world.rank, self.world.count
        if started and not self.world.joined:  # it joined no group, and its launcher knows
            count, rank = started[1:]
        return {
            "rank": rank, "world_size": count, "pid": self.pid, "began": steady.now(), "joined": self.world.joined,
            "engine": self.engine(), "device": self.devices[0].type, "threads": torch.get_num_threads(),
            "steps_taken": self.taken, "step_number": self.numbers, "step_time_s": times,
            "data_wait_s": self.clock.data_wait_s, "watch_s": self.watch_s, "between_s": self.between_s,
            "images": self.images, "devices": devices, "load": load,
            **(self.findings() | {"environment": collect_environment()} if rank == 0 else {}),
        }  # fmt: skip

    def findings(self) -> dict:
        """observed, as the detectors read it; unheard: mistake -> why it was not looked for."""
        if self.heard is None:
            why = self.why or "no DataLoader was walked: add the lines of a Watch"
            return {"observed": None, "unheard": dict.fromkeys(mistakes.DETECTED, why)}
        observed, unheard = self.heard
        return {"observed": nameless(observed), "unheard": {name: without_paths(why) for name, why in unheard.items()}}

    def engine(self) -> str:
        """How the script's ranks exchange gradients, as far as it can be seen."""
        used = [each() for each in self.optimizers if each() is not None]
        if any(hasattr(each, "_allreduce_grad_async") for each in used):
            return "Horovod"
        if isinstance(self.model, DistributedDataParallel):
            return "DistributedDataParallel"
        if isinstance(self.model, nn.DataParallel) and len(self.model.device_ids or ()) > 1:
            return "DataParallel"
        return "one process" if self.world.count == 1 and not launched() else "not known"


def nameless(item):
    """What JSON can hold, with every path in it shortened."""
    if isinstance(item, dict):
        return {without_paths(str(key)): nameless(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [nameless(each) for each in item]
    return without_paths(item) if isinstance(item, str) else item
