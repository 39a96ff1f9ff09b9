"""One process of a foreign script, timed from inside: steps, waits for data, memory, load, and what a Watch sees.

A step is from the end of one ``optimizer.step()`` to the end of the next, of the optimizer that trains first; a step
within a step is Horovod's or a wrapper's, and one that no backward pass precedes only makes an optimizer's state. An
interval in which a DataLoader was started, or the model was evaluated, is counted apart. What the script computes is
not changed, and no random number is drawn; no rank waits for another one.
"""

import atexit
import contextlib
import itertools
import json
import multiprocessing.util
import os
import pickle
import sys
import threading
import time
import weakref
from pathlib import Path

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, dataloader
from torch.utils.hooks import unserializable_hook

from bench import files
from bench.foreign import models
from bench.foreign.watching import Silent
from bench.measure import steady
from bench.measure.clock import StepClock
from bench.measure.environment import collect_environment
from bench.measure.load import Load
from bench.measure.memory import MemorySampler
from bench.observe import Watch, watch
from bench.observe.counts import Counts
from bench.observe.gradients import is_horovod
from bench.observe.hang import Hang, failure_of_process
from bench.observe.listening import uncompiled
from bench.observe.probe import held_by
from bench.observe.ranks import Ranks, launched
from bench.observe.view import Walked
from bench.structure import parameters_of

MOST_STEPS = 100_000  # timed; later ones are not
timers: list["Timer"] = []  # of this process: one at the most


def made(optimizer, asked: str, opened) -> None:
    """The script has made an optimizer; the first one begins the timing. asked: as a Timer takes it, as JSON. opened:
    the files that were written before (hook.py)."""
    if not timers:
        timers.append(Timer(json.loads(asked), opened.handed_over()))
    timers[0].made(optimizer)


class Backward:
    """Whether a backward pass has reached an optimizer's parameters; they have hooks until it has."""

    def __init__(self, optimizer):
        self.seen = False
        parameters = [p for p in parameters_of(optimizer) if isinstance(p, nn.Parameter) and p.requires_grad]
        self.hooks = [p.register_hook(self.hear()) for p in parameters]

    def hear(self):
        """A hook of a parameter, which may be pickled meanwhile."""

        def heard(gradient) -> None:
            self.seen = True

        return unserializable_hook(uncompiled(heard))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


class Timer:
    """asked: folder, for this rank's part; observed, a file for what all ranks saw; warmup; steps (None: to the end);
    watch (whether to look for mistakes)."""

    def __init__(self, asked: dict, opened: list):
        self.asked, self.pid, self.ended, self.thread = asked, os.getpid(), False, None
        self.optimizers: list[weakref.ref] = []
        self.backward: dict[int, tuple[weakref.ref, Backward]] = {}  # of optimizers that have not trained yet
        self.first, self.rival, self.depth = None, None, 0  # first: the optimizer whose steps are timed
        self.family = weakref.WeakKeyDictionary()  # optimizer -> the same number for all that share parameters
        self.taken, self.others, self.numbers, self.kinds, self.watch_s = 0, 0, [], [], []
        self.wait_s, self.kind, self.spent_s = 0.0, "", 0.0
        self.clock = self.sampler = self.load = None
        self.begun, self.models, self.listening = False, [], lambda: None
        self.heard, self.images, self.why = None, None, "it was not asked for (WATCH=0)"
        self.world = Ranks()
        self.own = Silent(opened) if asked["watch"] and not watch.made[0] else None
        self.walks = weakref.WeakKeyDictionary()  # torch's iterator -> Walked
        watch.hearers.append(self.hear)
        self.hooks = [register_optimizer_step_pre_hook(uncompiled(self.before_step))]
        self.hooks += [register_optimizer_step_post_hook(uncompiled(self.after_step))]
        self.patched = DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__
        self.patch(*self.patched)
        atexit.register(self.finish)  # before what ends the groups, which were made earlier
        if multiprocessing.parent_process():  # such a process ends without what atexit holds
            multiprocessing.util.Finalize(None, self.finish, exitpriority=10)

    def made(self, optimizer) -> None:
        held = held_by(optimizer)
        kin = [each for each in self.alive() if not held.isdisjoint(map(id, parameters_of(each)))]
        self.family[optimizer] = self.family[kin[0]] if kin else len(self.optimizers)
        self.optimizers.append(weakref.ref(optimizer))
        self.backward[id(optimizer)] = weakref.ref(optimizer), Backward(optimizer)

    def alive(self) -> list:
        return [optimizer for each in self.optimizers if (optimizer := each()) is not None]

    # --- loaders --------------------------------------------------------------------------------------------------

    def patch(self, begin, following) -> None:
        """Hear of every walk over a DataLoader, and how long its batches are waited for. What these methods return is
        torch's own, for a class that is derived from DataLoader may call them and do with it what it likes."""

        def iterated(loader):
            if os.getpid() != self.pid:  # a worker of a loader
                return begin(loader)
            self.kind = "loader"
            return self.walk(loader, begin) if self.own else begin(loader)

        def waited(iterator):
            began = time.perf_counter()
            try:
                walked = self.walks.get(iterator) if os.getpid() == self.pid else None
                return following(iterator) if walked is None else walked.step(lambda: following(iterator))
            finally:
                if threading.get_ident() == self.thread:  # another thread fetches ahead
                    self.wait_s += time.perf_counter() - began

        DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__ = iterated, waited

    def walk(self, loader, begin):
        """``begin(loader)``, of which our Watch is told."""
        self.own.walk(loader)
        if (kept := vars(loader).get("_iterator")) is not None:  # of persistent workers: its last walk is over
            self.walks.pop(kept, None)
        walked = Walked(self.own.tell, loader)
        iterator = walked.begin(lambda: begin(loader))
        self.walks[iterator] = walked
        return iterator

    # --- steps ----------------------------------------------------------------------------------------------------

    def before_step(self, optimizer, arguments, options) -> None:
        if self.ended or os.getpid() != self.pid:
            return
        self.depth += 1
        try:
            if self.depth == 1 and not self.begun and self.trains(optimizer):
                self.start()
            if self.own and self.own.started:
                self.own.before_step(optimizer, arguments, options)
        except Exception as error:
            self.fails(error)

    def after_step(self, optimizer, arguments, options) -> None:
        if self.ended or os.getpid() != self.pid:
            return
        self.depth = max(0, self.depth - 1)
        try:
            if self.own and self.own.started:
                self.own.after_step(optimizer, arguments, options)
            if self.depth == 0 and self.trains(optimizer):
                self.trained(optimizer)
        except Exception as error:
            self.fails(error)

    def fails(self, error: Exception) -> None:
        """Something of ours went wrong: the script goes on."""
        self.ended = True
        self.say(f"is not timed any more: {type(error).__name__}: {error}")

    def trains(self, optimizer) -> bool:
        """Whether an optimizer has trained: before one of its steps was a backward pass, or a gradient that is not
        zero. Horovod's broadcast_optimizer_state, and others, take a step with zeros to make an optimizer's state."""
        made, backward = self.backward.get(id(optimizer), (None, None))
        if made is None or made() is not optimizer:  # it has trained before
            return True
        if not backward.seen and not any(map(is_some, parameters_of(optimizer))):
            return False
        backward.close()
        del self.backward[id(optimizer)]
        return True

    def trained(self, optimizer) -> None:
        if not self.begun:
            self.start()
        if self.first is None:
            self.first = weakref.ref(optimizer)
            self.open(optimizer)
        for made, backward in self.backward.values():
            if backward.seen or made() is None:
                backward.close()
        if self.times(optimizer):
            self.step()
        else:
            self.others += 1

    def times(self, optimizer) -> bool:
        """Whether this optimizer's steps are timed: those of the first one, until another one that shares parameters
        with it has taken two without it."""
        if optimizer is self.first():
            self.rival = None
            return True
        if self.rival and self.rival() is optimizer and self.family.get(optimizer) == self.number:
            self.first, self.rival, self.kind = weakref.ref(optimizer), None, "phase"
            return True
        self.rival = weakref.ref(optimizer)
        return False

    def start(self) -> None:
        """The training starts: by now the models are what the script made of them."""
        self.begun = True
        self.world.look()
        ours = [each for each in self.alive() if is_horovod(each)] or self.alive()
        try:
            self.models = models.find(ours)
            self.listening = models.hear_evaluations(self.models, self.evaluated)
            if self.own and watch.made[0] > 1:
                self.drop()
            if self.own:
                self.own.start(self.models, ours)
            elif self.asked["watch"]:
                self.why = "the script's own Watch did not report"
        except Exception as error:
            self.why = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.drop()

    def drop(self) -> None:
        if self.own:
            own, self.own = self.own, None
            self.walks.clear()
            own.probe(Hang).over.set()
            own.part()  # which takes everything else down

    def evaluated(self) -> None:
        self.kind = self.kind or "evaluation"

    def open(self, optimizer) -> None:
        """The first step has been taken: the devices are known."""
        self.number, self.thread = self.family.get(optimizer), threading.get_ident()
        self.devices = [p.device for p in parameters_of(optimizer)][:1]
        modules = [module for model in self.models for module in model.modules()]
        if ids := next((each.device_ids for each in modules if isinstance(each, nn.DataParallel)), None):
            self.devices = [torch.device("cuda", index) for index in ids]
        self.clock = StepClock(self.devices[0], names=("start",))
        self.sampler = MemorySampler(self.devices)
        self.sampler.start()

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.asked["warmup"]:
            self.sampler.mark("timed")
            self.load = Load()
            self.clock.start()
        elif self.taken > self.asked["warmup"] and len(self.numbers) < MOST_STEPS:
            self.clock.step_done(self.wait_s)
            self.numbers.append(self.taken)
            self.kinds.append(self.kind)
            self.watch_s.append(self.watched_s() - self.spent_s)
        self.wait_s, self.kind, self.spent_s = 0.0, "", self.watched_s()
        if self.asked["steps"] and self.taken >= self.asked["warmup"] + self.asked["steps"]:  # on all ranks the same
            if self.own:
                self.own.cut = True
            self.finish(why="")
            raise SystemExit(0)

    def watched_s(self) -> float:
        return self.own.spent_s if self.own else 0.0

    def are_steps(self) -> list[bool]:
        """For each interval whether it is a step. Evaluations that are in most of them are part of the training; and
        where a DataLoader is started in each of them, that is how the script gets its batches."""
        apart = {"loader", "phase"}
        plain, evaluated = self.kinds.count(""), self.kinds.count("evaluation")
        if evaluated <= plain:
            apart.add("evaluation")
        found = [kind not in apart for kind in self.kinds]
        return found if any(found) else [True] * len(found)

    # --- the end --------------------------------------------------------------------------------------------------

    def hear(self, reporting: Watch, observed: dict) -> None:
        """The script's own Watch has reported."""
        self.images = reporting.probe(Counts).images_per_step() or None
        self.heard = observed

    def finish(self, why: str | None = None) -> None:
        """Leave this process's part, once. What fails is one line, and never the script's. why: the exception that has
        ended it, "" for none."""
        if self.ended or os.getpid() != self.pid:
            return
        self.ended = True
        DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__ = self.patched
        why, done = failure_of_process() if why is None else why, f"after {self.taken} steps"
        with contextlib.suppress(Exception):
            self.listening()
            for hook in self.hooks:
                hook.remove()
            if self.own and self.own.begun:
                done = self.own.probe(Hang).end_of_process(why, self.taken)
        if self.first is None:
            return
        try:
            self.world.look()
            started = launched()
            rank, count = self.world.rank, self.world.count
            if started and not self.world.joined:  # it joined no group, and its launcher knows
                count, rank = started[1:]
            end = {"at": steady.now(), "failed": bool(why), "words": f"{why}, {done}" if why else done}
            part = {"rank": rank, "world_size": count, "pid": self.pid, "end": end}
            # The device of a process that has failed may never be done with what it was given: it is not asked.
            self.leave(part if why else part | self.part(rank, count))
        except Exception as error:
            self.say(f"has left no times: {type(error).__name__}: {error}")

    def leave(self, part: dict) -> None:
        path = Path(self.asked["folder"]) / f"part-{part['rank']}-{self.pid}.json"
        with files.written_whole(path) as temporary:
            temporary.write_text(json.dumps(part, allow_nan=False))

    def say(self, what: str) -> None:
        print(f"bench: process {self.pid} {what}", file=sys.stderr, flush=True)

    def show(self, rank: int, count: int, seen: dict) -> None:
        """Leave what our Watch has seen, for the rank that comes last: it puts all of it together."""
        folder = Path(self.asked["folder"])
        with files.written_whole(folder / f"seen-{rank}") as temporary:
            temporary.write_bytes(pickle.dumps(seen))
        everybody = [folder / f"seen-{number}" for number in range(count)]
        if not all(path.exists() for path in everybody):
            return
        try:
            observed, unheard = watch.join([pickle.loads(path.read_bytes()) for path in everybody])
            with files.written_whole(Path(self.asked["observed"])) as temporary:
                temporary.write_text(json.dumps({"observed": observed, "unheard": unheard}, allow_nan=False))
        except Exception as error:  # the times are left
            self.why = f"what the ranks saw cannot be put together: {type(error).__name__}: {error}"

    def part(self, rank: int, count: int) -> dict:
        times = self.clock.step_time_s()
        self.sampler.mark("end")
        load = self.load.stop() if self.load else None
        devices = self.sampler.stop()
        if self.own and self.heard is None:
            self.images, self.why = self.own.probe(Counts).images_per_step(self.taken) or None, ""
            self.show(rank, count, self.own.part())
        kept = self.are_steps()
        columns = {"step_number": self.numbers, "step_time_s": times, "data_wait_s": self.clock.data_wait_s,
                   "watch_s": self.watch_s}  # fmt: skip
        columns = {name: list(itertools.compress(values, kept)) for name, values in columns.items()}
        return columns | {
            "began": steady.now(), "joined": self.world.joined, "device": self.devices[0].type,
            "engine": models.engine_of(self.models, self.alive(), 0 if launched() else self.world.count),
            "threads": torch.get_num_threads(), "steps_taken": self.taken, "other_steps": self.others,
            "between_s": [seconds for seconds, step in zip(times, kept, strict=True) if not step],
            "images": self.images, "devices": devices, "load": load, "observed": self.heard, "why": self.why,
            **({"environment": collect_environment()} if rank == 0 else {}),
        }  # fmt: skip


def is_some(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and float(parameter.grad.norm()) != 0
