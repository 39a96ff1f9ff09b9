"""A rank's heartbeat: a small memory-mapped file with its step and phase. Writing takes less than a microsecond and no
system call, so it happens inside timed steps. No torch, because the launcher also reads it."""

import contextlib
import math
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench import files

VALIDATING = "validating"
PHASES = ("starting", "joining the group", "preparing the data", "building the model", "waiting for data", "forward",
          "backward", "synchronize", "optimizer step", VALIDATING, "writing a checkpoint", "running",
          "collecting results", "done", "raised", "terminated")  # fmt: skip
PREPARING = PHASES[:4]  # before any training or measurement
LAYOUT = struct.Struct("<qqqqdqqddddqq")  # pid, phase, step, total steps, loss, beats; then a Window
WINDOW_AT = 48
BATCHES_AT = 88
LINE_S = 5.0  # between two lines of progress, and a twentieth of the steps
LINES = 20


class Window(NamedTuple):
    """The last second or so of training. epoch: from 1, or 0. rate: units per second over all processes. data_wait:
    fraction of the time. memory_gib: of the process or its GPU. batch, batches: of a validation in progress."""

    epoch: int = 0
    rate: float = 0.0
    data_wait: float = 0.0
    lr: float = 0.0
    memory_gib: float = 0.0
    batch: int = 0
    batches: int = 0


NO_WINDOW = Window()


@dataclass(frozen=True)
class Heartbeat:
    """A rank's last state. ``loss`` is nan until known."""

    pid: int
    phase: str
    step: int
    total_steps: int
    loss: float
    beats: int = 0  # phases begun so far, which show progress
    window: Window = NO_WINDOW

    @property
    def validates(self) -> bool:
        return self.phase == VALIDATING and self.window.batches > 0


def status_path(run_dir: Path, rank: int) -> Path:
    return Path(run_dir) / f".rank{rank}.status"


class StatusWriter:
    def __init__(self, run_dir: Path, rank: int):
        path = status_path(run_dir, rank)
        path.write_bytes(bytes(LAYOUT.size))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), LAYOUT.size)
        LAYOUT.pack_into(self.map, 0, os.getpid(), 0, 0, 0, float("nan"), 0, *NO_WINDOW)
        self.beats = 0
        self.current = PHASES[0]
        self.codes = {phase: code for code, phase in enumerate(PHASES)}

    def phase(self, phase: str) -> None:
        """One of PHASES; the same one again shows that it still runs."""
        struct.pack_into("<q", self.map, 8, self.codes[phase])
        self.current = phase
        self.beats += 1
        struct.pack_into("<q", self.map, 40, self.beats)

    def total(self, steps: int) -> None:
        struct.pack_into("<q", self.map, 24, steps)

    def step(self, step: int) -> None:
        struct.pack_into("<q", self.map, 16, step)

    def loss(self, loss: float) -> None:
        """The newest loss known without waiting for the device."""
        struct.pack_into("<d", self.map, 32, loss)

    def window(self, window: Window) -> None:
        struct.pack_into("<qddddqq", self.map, WINDOW_AT, *window)

    def validated(self, epoch: int, batch: int, batches: int) -> None:
        """epoch: that the validation follows, or 0."""
        struct.pack_into("<q", self.map, WINDOW_AT, epoch)
        struct.pack_into("<qq", self.map, BATCHES_AT, batch, batches)


def epochs_path(run_dir: Path) -> Path:
    """Rank 0 writes each finished epoch's row here, one JSON object per line."""
    return Path(run_dir) / ".rank0.epochs"


def starts_path(run_dir: Path) -> Path:
    """With MIN_DEVICES rank 0 writes here where training begins, the first time and after each interruption."""
    return Path(run_dir) / ".rank0.starts"


def in_words(beat: Heartbeat, units: str, rank: int | None = None) -> str:
    """A rank's progress in one line. rank: whose loss it is, if there are several.

    >>> in_words(Heartbeat(1, "forward", 20, 100, 1.2345, window=Window(2, 187.0, 0.031, 0.05, 0.68)), "images", rank=0)
    'step 20 of 100, epoch 2, 187 images/s, loss 1.234 (rank 0), waiting for data 3 %, lr 0.05'
    >>> in_words(Heartbeat(1, "validating", 50, 100, 1.2345, window=Window(2, batch=8, batches=40)), "images")
    'validating epoch 2, batch 8 of 40'
    """
    window = beat.window
    if beat.validates:
        return f"validating{f' epoch {window.epoch}' * bool(window.epoch)}, batch {window.batch} of {window.batches}"
    if not window.rate:
        return beat.phase
    rate = f"{window.rate:.3g}" if window.rate < 100 else f"{window.rate:.0f}"
    whose = "" if rank is None else f" (rank {rank})"
    parts = [f"step {beat.step} of {beat.total_steps}", *([f"epoch {window.epoch}"] if window.epoch else [])]
    parts += [f"{rate} {units}/s", *([] if math.isnan(beat.loss) else [f"loss {beat.loss:.3f}{whose}"])]
    return ", ".join([*parts, f"waiting for data {100 * window.data_wait:.0f} %", f"lr {window.lr:.4g}"])


def line_is_due(every: int | None, step: int, printed: int, total: int, since_s: float) -> bool:
    """Whether to print progress. every: PRINT_EVERY. printed, since_s: step of the last line, seconds since then.

    >>> [line_is_due(4, step, 3, 12, 0.0) for step in (3, 4, 5)], line_is_due(None, 60, 40, 200, 6.0)
    ([False, True, True], True)
    """
    if every:
        return step // every > printed // every
    return since_s >= LINE_S and (step - printed) * LINES >= total


def every_status(run_dir: Path) -> dict[int, Heartbeat]:
    numbers = sorted(int(found[1]) for path in Path(run_dir).glob(".rank*.status")
                     if (found := re.fullmatch(r"\.rank(\d+)\.status", path.name)))  # fmt: skip
    return {rank: beat for rank in numbers if (beat := read_status(run_dir, rank))}


def read_status(run_dir: Path, rank: int) -> Heartbeat | None:
    with contextlib.suppress(OSError, struct.error):
        content = files.read_regular_file(status_path(run_dir, rank), LAYOUT.size)
        pid, phase, step, total, loss, beats, *window = LAYOUT.unpack(content)
        if pid and 0 <= phase < len(PHASES):
            return Heartbeat(pid, PHASES[phase], step, total, loss, beats, Window(*window))
    return None
