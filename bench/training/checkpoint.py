"""Checkpoints: a run's state on disk, from which it can be resumed.

What comes in: a dict of tensors and plain values. What goes out: a file that is either the old one or the new one,
whole, whenever the power fails.

A checkpoint of this bench is one dict, written by rank 0 alone:

    format       FORMAT
    version      VERSION
    model        the state dict of the UNWRAPPED model: no key starts with ``module.``, so it fits every mode
    optimizer    the optimizer's state dict
    scaler       the gradient scaler's state dict, or None
    step         steps taken
    images_seen  images trained on, over all ranks
    loss_sum     of the steps of the epoch that has begun, a mean over ranks; loss_steps: how many those are
    counts       of the epoch that has begun, over all ranks: losses, hits, examples (not in older files)
    skipped_steps  steps that the loss guard or the scaler left out
    elapsed_s    seconds of training and validation, over all runs up to here
    accuracy     one row per epoch, as in the record
    guard        the mean loss that the loss guard knows, or None
    config       the run's options, plain values
    classes      the names of the classes, or None (not in older files)
    num_images   the length of the training set
    world_size   processes
    ranks        one dict per rank: its buffers (batch norms differ by rank in some modes), its RNG's state, and the
                 names of images it could not read
    ema, swa     with EMA and SWA: the state dict of torch's AveragedModel; ranks have its buffers under ``averages``

The file is a zip archive with a checksum of every part. torch writes them and does not look at them when it reads: a
bit that has flipped in a weight would go unseen, so ``read`` looks.
"""

import contextlib
import io
import math
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bench import files
from bench.config.fields import LARGEST_WHOLE, fits
from bench.config.options import FIELDS
from bench.config.workloads import Metric
from bench.errors import BenchError, UserError
from bench.files import LATEST
from bench.workload import weights
from bench.workload.weights import listed, reason

FORMAT = "data-parallel-bench checkpoint"
VERSION = 1
BEST = "best.pt"  # that of its best epoch
KEYS = (
    "model", "optimizer", "scaler", "step", "images_seen", "loss_sum", "loss_steps", "skipped_steps", "elapsed_s",
    "accuracy", "guard", "config", "num_images", "world_size", "ranks",
)  # fmt: skip


# What a value must be for a run to go on from it. A value of another kind would raise far from here, or never.
WHOLE = ("step", "images_seen", "loss_steps", "skipped_steps")
TABLES = ("model", "optimizer", "config")


# Writing


@dataclass(frozen=True)
class Checkpoint:
    """One that was read, and where it lies."""

    state: dict
    path: Path


def save(path: Path, state: dict) -> None:
    """Write a checkpoint. Whatever happens, ``path`` is the old one or the new one, never half of one.

    Raises BenchError in one line when it cannot be written (a full disk); the temporary file is removed then.
    """
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        torch.save(state, file)


def in_memory(state: dict) -> bytes:
    """A checkpoint as a file would hold it: it stays what it is while training goes on."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_memory(content: bytes) -> dict:
    """The opposite of ``in_memory``, with all tensors on the CPU."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def keep(latest: Path, kept: Path) -> None:
    """``kept`` becomes what ``latest`` is now, and stays it when ``latest`` is replaced.

    A hard link costs no bytes and no time: ``save`` gives the name ``latest`` to a new file and leaves the old one as
    it is. Where links are impossible it is a copy. Raises BenchError in one line when neither can be made.
    """
    with replacing(Path(kept)) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(latest, temporary)
        except OSError:
            with open(latest, "rb") as source, temporary.open("wb") as file:
                shutil.copyfileobj(source, file)


def keep_epoch(latest: Path, epoch: int, newest: int | None) -> None:
    """``latest`` is kept as that of an epoch; of all that are kept so the ``newest`` stay, or all (None)."""
    keep(latest, epoch_path(latest.parent, epoch))
    if newest is not None and epoch > newest:
        epoch_path(latest.parent, epoch - newest).unlink(missing_ok=True)


def epoch_path(folder: Path, epoch: int) -> Path:
    """Where the checkpoint of an epoch is kept (KEEP)."""
    return folder / f"epoch{epoch}.pt"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """``files.written_whole``, with an error that says what became of the checkpoint before."""
    try:
        with files.written_whole(path, path.with_name(path.name + ".tmp")) as temporary:
            yield temporary
    except (OSError, RuntimeError) as error:
        earlier = "the earlier one there is whole" if os.path.exists(path) else "there was no earlier one"
        raise BenchError(f"cannot save {path} ({reason(error)}): {earlier}") from error


# Reading


def find(text: str) -> Path:
    """The checkpoint that RESUME=text names: a file, a run's folder (its latest.pt), or a folder of runs.

    In a folder of runs it is the latest.pt that was written last. Raises UserError when there is none.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"RESUME={text} is not there: name a checkpoint, a run's folder or a folder of runs")
    if (path / LATEST).is_file():
        return path / LATEST
    found = sorted(path.rglob(LATEST), key=lambda p: (p.stat().st_mtime_ns, p))
    if not found:
        raise UserError(f"RESUME={text}: no latest.pt in that folder or below it, so there is nothing to resume")
    return found[-1]


def read(path: Path) -> dict:
    """A checkpoint, whole and with all that a run needs to go on from it. Raises UserError in one line."""
    state = weights.read(path)
    check(state, path)
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        damaged = reason(error)
    if damaged:
        raise UserError(
            f"{path} is damaged ({damaged} is not what was written): copy it again, or resume an earlier one"
        )
    return state


def best_of(path: Path, rows: list[dict], metric: Metric) -> Path | None:
    """The checkpoint of the best epoch that ``path`` knows, beside it; None where it was not kept.

    rows: its epochs. metric: the workload's first, by which the best is chosen. A best.pt beside the checkpoint of an
    earlier epoch may be of an epoch after that one.
    """
    validated = [row for row in rows if row.get(metric.key) is not None and row.get("loss", 0) is not None]
    best = path.parent / BEST
    if path.name not in (LATEST, BEST):
        value = metric.best(row[metric.key] for row in validated)
        best = next((epoch_path(path.parent, row["epoch"]) for row in validated if row[metric.key] == value), best)
    return best if validated and best.exists() else None


def check(state, path: Path) -> None:
    """Raise UserError unless ``state``, read from ``path``, is a checkpoint that a run can be resumed from."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(
            f"{path} is not a checkpoint of this bench: PRETRAINED={path} starts a new run from its weights"
        )
    version = state.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        advice = "a newer bench wrote it: update this one" if newer else "this bench never wrote such a one"
        raise UserError(f"{path} is a checkpoint of version {version}, and {VERSION} is read here: {advice}")
    missing = [key for key in KEYS if key not in state]
    if missing:
        raise UserError(f"{path} is a checkpoint without {listed(missing)}: it cannot be resumed from")
    if wrong := list(odd(state)):
        raise UserError(
            f"{path} is no checkpoint that this bench wrote ({listed(wrong)} cannot be): resume another one"
        )


def odd(state: dict) -> Iterator[str]:
    """The keys whose values no run has written."""
    yield from (key for key in WHOLE if not whole(state[key], 0))
    yield from (key for key in ("num_images", "world_size") if not whole(state[key], 1))
    if type(state["loss_sum"]) not in (int, float):  # of a training that went astray it may be NaN
        yield "loss_sum"
    if not is_finite(state["elapsed_s"]):
        yield "elapsed_s"
    yield from (key for key in TABLES if not isinstance(state[key], dict))
    if state["guard"] is not None and not is_finite(state["guard"]):
        yield "guard"
    if not isinstance(state["scaler"], dict | None):
        yield "scaler"
    if isinstance(state["model"], dict) and not are_tensors(state["model"]):
        yield "model"
    if not isinstance(state["accuracy"], list) or not all(map(is_row, state["accuracy"])):
        yield "accuracy"
    if isinstance(state["config"], dict) and not is_config(state["config"]):
        yield "config"
    parts, size = state["ranks"], state["world_size"]
    if not isinstance(parts, list) or not all(map(is_part, parts)) or (whole(size, 1) and len(parts) != size):
        yield "ranks"


def whole(value, least: int) -> bool:
    """Whether a value is a whole number of at least ``least``."""
    return type(value) is int and least <= value < LARGEST_WHOLE


def is_finite(value) -> bool:
    """Whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def are_tensors(part) -> bool:
    """Whether a value is a dict of tensors."""
    return isinstance(part, dict) and all(isinstance(value, torch.Tensor) for value in part.values())


def is_config(values: dict) -> bool:
    """Whether a value is a run's options; an older bench had fewer."""
    return "optimizer" in values and all(fits(FIELDS[name], values[name]) for name in FIELDS.keys() & values.keys())


def is_row(row) -> bool:
    """Whether a value is what an epoch leaves for the record."""
    if not isinstance(row, dict) or not all(isinstance(value, int | float | None) for value in row.values()):
        return False
    return whole(row.get("epoch"), 0) and whole(row.get("steps"), 0) and is_finite(row.get("elapsed_s"))


def is_part(part) -> bool:
    """Whether a value is what a rank gives to a checkpoint."""
    return isinstance(part, dict) and all(are_tensors(part.get(key)) for key in ("buffers", "rng"))
