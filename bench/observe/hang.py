"""A hanging training: a watcher thread finds each rank's place in the code, and the places together show the cause.

Nothing is terminated. The thread sleeps, and reads the main thread's stack after a long time without progress. The
ranks write their places into the process group's store, without a collective; without a store each rank prints its own.
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

ENDED_S = 3.0  # without a batch or a step; then check whether another rank has ended
TIMES = 10  # a training hangs without progress for this many times the longest observed wait
LONG = 5  # times the limit, after which a rank reports its place in any case: until then a validation may be long
STILL_S = 0.5  # a rank that is elsewhere after this time does not hang
ANSWER_S = 15.0  # for the other ranks to report their places, beyond the limit
BENCH = PROJECT / "bench"
MEETING = os.path.abspath(ranks.__file__)

Stack = list[tuple[CodeType, int]]  # the script's own frames, outermost first: code and current line


class Hang(Probe):
    """The time of the last progress, and the report after ``Watch(hang_s=)`` seconds without any."""

    joins: ClassVar = {"hang": lambda parts: next((part for part in parts if part["where"]), None)}
    thread = store = None

    def setup(self) -> None:
        self.over, self.moved, self.longest = threading.Event(), time.monotonic(), 0.0
        self.epochs, self.taken, self.found, self.said = [], 0, None, False
        self.waits = False  # for a batch, from any loader
        self.steps, self.trained_at, self.fresh = 0, [], True  # trained_at: the main thread's stack in a step

    def begin(self, loader) -> None:
        self.pid, self.main = os.getpid(), threading.get_ident()
        self.moved = time.monotonic()
        self.start()
        self.thread = threading.Thread(target=self.look, name="bench-watch", daemon=True)
        self.thread.start()

    def start(self) -> None:
        if self.store is None:
            with contextlib.suppress(Exception):  # its own client: the script's may be waiting in a call
                self.store = self.watch.world.store.clone()

    def move(self) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self.moved)
        self.moved = now

    def fetch_begins(self, epoch) -> None:
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
                return  # the store is gone, or the interpreter is exiting

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
        long = (LONG + 2 * bool(here["collective"])) * limit  # a rank that waits for a batch reports it before this
        if findings or ended or (here["collective"] and not told) or waited > long:
            self.said, self.found = True, found
            at = f"{stacks.name(here)}{', in a collective' if here['collective'] else ''}"
            lines = [f"Watch: no progress on rank {world.rank} for {waited:.3g} s; it is at {at}"]
            lines += [f"  rank {rank} has ended ({why}){', but other ranks wait for it' if waits else ''}"
                      for rank, why in ended.items()]  # fmt: skip
            if findings and world.rank == min(set(range(world.count)) - set(ended)):
                lines += [f"known mistakes found: {len(findings)}"]
                lines += [line for finding in findings for line in finding.lines()]
            elif not told:
                lines += ["  the other ranks' places are unknown"]
            print("\n".join(lines), file=sys.stderr, flush=True)

    def place(self) -> dict | None:
        """The place of the training thread, and its progress in its epochs."""
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
            place.pop("awaits_batch", None)  # of an unwatched loader: a validation may be long
        passes = self.watch.probe(Passes)
        counts = {"taken": self.taken, "trains": passes.trains, "evaluates": passes.evaluates}
        left = {"left": has_left(self.trained_at, stack_of(frame))} if self.trained_at else {}
        return place | {"epochs": list(self.epochs)} | counts | left

    def end_of_process(self, why: str, steps: int) -> str:
        """Notify the other ranks that this process ends. why: the exception, "" for none. Returns its progress."""
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
        """How a rank ended, in words; "" for a running one."""
        with contextlib.suppress(Exception):  # the store is gone
            place = self.left_by(rank)
            return place["ended"] if has_ended(place) else ""
        return ""

    def part(self) -> dict:
        return {"hang": self.found or {"where": []}}


def has_ended(place: dict | None) -> bool:
    return bool(place) and "ended" in place


def failure_of_process() -> str:
    """The uncaught exception that ends this process, in one line; "" if there is none."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    while isinstance(error, SystemExit):  # in a multiprocessing child; it may have another cause
        error = error.__context__ if error.code else None
    if error is None:
        return ""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


# --- whether a thread is still in its training loop ---------------------------------------------------------------


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
    """Whether a thread has left the outermost loop in which it trained; None if the script has no loop."""
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
