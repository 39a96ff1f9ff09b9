"""A training that hangs: each rank's place, found by a thread beside it, and what that says when they are together.

Nothing is ended. The thread sleeps, and looks at the main thread when nothing has moved for long. The ranks leave
their places in the store of the process group, which is no collective; without one each says where it is itself.
"""

import ast
import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback
from types import CodeType, FrameType
from typing import ClassVar

from bench import mistakes
from bench.files import PROJECT
from bench.launch import stacks
from bench.launch.stacks import of_library
from bench.observe import ranks
from bench.observe.gradients import Passes
from bench.observe.probe import Probe
from bench.observe.waits import parsed
from bench.observe.weights import looked_at

ENDED_S = 3.0  # without a batch or a step, after which it is looked whether another rank has ended
TIMES = 10  # a training hangs when nothing moves for so many times the longest wait that was seen
LONG = 5  # times the limit, after which a rank says where it is whatever that is: until then a validation may be long
STILL_S = 0.5  # a rank that is elsewhere after so long does not hang
ANSWER_S = 15.0  # for the other ranks to say where they are, beyond the limit
BENCH = PROJECT / "bench"
MEETING = os.path.abspath(ranks.__file__)

Stack = list[tuple[CodeType, int]]  # the script's own frames, outermost first: code, and the line that it is at


class Hang(Probe):
    """When something has moved last, and what is said when nothing does for ``Watch(hang_s=)`` seconds."""

    joins: ClassVar = {"hang": lambda parts: next((part for part in parts if part["where"]), None)}
    thread = store = None

    def setup(self) -> None:
        self.over, self.moved, self.longest = threading.Event(), time.monotonic(), 0.0
        self.epochs, self.taken, self.found, self.said = [], 0, None, False
        self.waits = False  # for a batch, whatever yields it
        self.steps, self.trained_at, self.fresh = 0, [], True  # trained_at: the main thread's stack in a step

    def begin(self, loader) -> None:
        self.pid, self.main = os.getpid(), threading.get_ident()
        self.moved = time.monotonic()
        self.start()
        self.thread = threading.Thread(target=self.look, name="bench-watch", daemon=True)
        self.thread.start()

    def start(self) -> None:
        if self.store is None:
            with contextlib.suppress(Exception):  # a client of its own: the script's may be waiting in a call
                self.store = self.watch.world.store.clone()

    def move(self) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self.moved)
        self.moved = now

    def asked(self, epoch) -> None:
        self.waits = True

    def fetched(self, epoch, batch) -> None:
        self.taken += 1
        self.waits = False
        self.move()

    def after_step(self, optimizer) -> None:
        self.move()
        if self.thread and not self.watch.stepping and threading.get_ident() == self.main:
            self.steps += 1
            if self.fresh or looked_at(self.steps):
                self.trained_at, self.fresh = stack_of(sys._getframe()), False

    def epoch_ended(self, epoch) -> None:
        if epoch.whole and epoch.optimizer_steps:
            self.epochs.append(epoch.taken)
        self.taken, self.waits, self.fresh = 0, False, True
        self.move()

    def metric(self, values: dict) -> None:
        self.move()

    @property
    def limit_s(self) -> float:
        return max(self.watch.hang_s, TIMES * self.longest)

    def look(self) -> None:
        looked, left = 0.0, False
        while not self.over.wait(min(1.0, self.watch.hang_s / 4)) and os.getpid() == self.pid:
            now = time.monotonic()
            try:
                if left and now - self.moved < ENDED_S:
                    self.leave(None)
                    left = False
                still = now - max(self.moved, looked)
                if self.said or still <= min(self.limit_s, ENDED_S):
                    continue
                if still > self.limit_s or (self.store is not None and self.store.check([self.key("ended")])):
                    self.hangs()
                    looked, left = time.monotonic(), True
            except Exception:
                return  # the store is gone, or the interpreter is on its way out

    def hangs(self) -> None:
        here = self.place()
        if here is None or self.over.wait(STILL_S) or (self.place() or {}).get("line") != here["line"]:
            return  # it computes
        limit, world = self.limit_s, self.watch.world
        where = self.places(here)
        told, ended = all(where), {rank: place["ended"] for rank, place in enumerate(where) if has_ended(place)}
        waited = time.monotonic() - self.moved
        waits = here["collective"] or (here["collective"] is None and waited > limit)
        if self.over.is_set() or (ended and not waits and waited < LONG * limit):
            return
        found = {"limit_s": limit, "where": where if told else [], "by": "Watch"}
        findings = mistakes.find({"world_size": world.count, "hang": found}) if told else []
        long = (LONG + 2 * bool(here["collective"])) * limit  # a rank that waits for a batch reports it by then
        if findings or ended or (here["collective"] and not told) or waited > long:
            self.said, self.found = True, found
            at = f"{stacks.name(here)}{', in a collective' if here['collective'] else ''}"
            lines = [f"Watch: nothing has moved on rank {world.rank} for {waited:.3g} s; it is at {at}"]
            lines += [f"  rank {rank} has ended ({why}){', and is waited for' if waits else ''}"
                      for rank, why in ended.items()]  # fmt: skip
            if findings and world.rank == min(set(range(world.count)) - set(ended)):
                lines += [f"known mistakes found: {len(findings)}"]
                lines += [line for finding in findings for line in finding.lines()]
            elif not told:
                lines += ["  where the other ranks are is not known"]
            print("\n".join(lines), file=sys.stderr, flush=True)

    def place(self) -> dict | None:
        """Where the training's thread is, and how far it has come in its epochs."""
        frame = sys._current_frames().get(self.main)
        found = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_stack(frame)]
        place = stacks.place_in([{"file": file, "line": str(line), "function": name} for file, line, name in found
                                 if not file.startswith(f"{BENCH}/")])  # fmt: skip
        if place is None:
            return None
        if any(file == MEETING for file, _, _ in found):  # it waits in report
            place["collective"] = True
        if self.waits and not place["collective"]:
            place["awaits_batch"] = True
        elif time.monotonic() - self.moved < LONG * self.limit_s:
            place.pop("awaits_batch", None)  # of a loader that is not watched: a validation may be long
        passes = self.watch.probe(Passes)
        counts = {"taken": self.taken, "trains": passes.trains, "evaluates": passes.evaluates}
        left = {"left": has_left(self.trained_at, stack_of(frame))} if self.trained_at else {}
        return place | {"epochs": list(self.epochs)} | counts | left

    def end_of_process(self, why: str, steps: int) -> str:
        """Tell the other ranks that this process ends. why: the exception, "" for none. Returns how far it has come."""
        self.over.set()
        done = f"after {len(self.epochs)} epochs, {steps} steps" if self.epochs else f"after {steps} steps"
        with contextlib.suppress(Exception):  # the store is gone
            self.leave({"ended": f"{why}, {done}" if why else done, "file": "", "line": 0, "function": "",
                        "collective": False, "epochs": self.epochs, "taken": self.taken})  # fmt: skip
            if self.store is not None:
                self.store.set(self.key("ended"), "1")
        return done

    def places(self, here: dict) -> list[dict | None]:
        world = self.watch.world
        if self.store is None or world.count == 1:
            return [here if rank == world.rank else None for rank in range(world.count)]
        self.leave(here)
        deadline = time.monotonic() + ANSWER_S + 0.5 * self.limit_s
        while True:
            places = [self.left_by(rank) for rank in range(world.count)]
            if all(places) or time.monotonic() >= deadline or self.over.wait(0.1):
                return places

    def leave(self, here: dict | None) -> None:
        if self.store is not None:
            self.store.set(self.key(self.watch.world.rank), json.dumps(here))

    def left_by(self, rank: int) -> dict | None:
        if self.store is None or not self.store.check([self.key(rank)]):
            return None
        return json.loads(self.store.get(self.key(rank)))

    def key(self, rank: int | str) -> str:
        return f"bench-watch/hang{self.watch.number}/{rank}"

    def ended_because(self, rank: int) -> str:
        """How a rank has ended, in words; "" for one that has not."""
        with contextlib.suppress(Exception):  # the store is gone
            place = self.left_by(rank)
            return place["ended"] if has_ended(place) else ""
        return ""

    def part(self) -> dict:
        return {"hang": self.found or {"where": []}}


def has_ended(place: dict | None) -> bool:
    return bool(place) and "ended" in place


def failure_of_process() -> str:
    """The exception that ends this process, in a line, once it has not been caught; "" if there is none."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    while isinstance(error, SystemExit):  # of a child that multiprocessing has started; it may have come of another
        error = error.__context__ if error.code else None
    if error is None:
        return ""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


# --- whether a thread is still in the loop in which it has trained ------------------------------------------------


@functools.lru_cache(maxsize=1000)
def of_script(file: str) -> bool:
    return not (of_library(file) or file.startswith(f"{BENCH}/"))


def stack_of(frame: FrameType | None) -> Stack:
    found = []
    while frame:
        if of_script(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
            if frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return found[::-1]


def has_left(trained: Stack, now: Stack) -> bool | None:
    """Whether a thread has left the outermost loop in which it trained; None if the script itself has no loop."""
    for depth, (code, line) in enumerate(trained):
        around = [loop for loop in loops(code.co_filename) if code.co_firstlineno <= loop[0] <= line <= loop[1]]
        if around:
            first, last = min(around)
            same = now[:depth] == trained[:depth] and len(now) > depth and now[depth][0] is code
            return not (same and first <= now[depth][1] <= last)
    return None


@functools.lru_cache(maxsize=100)
def loops(file: str) -> list[tuple[int, int]]:
    kinds = (ast.For, ast.AsyncFor, ast.While)
    return [(node.lineno, node.end_lineno) for node in ast.walk(parsed(file)) if isinstance(node, kinds)]
