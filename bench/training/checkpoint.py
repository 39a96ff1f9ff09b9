"""Checkpoints: a run's state on disk, from which it can be resumed. Writing is atomic, also at a power failure; only
rank 0 writes. ``PARTS`` is the format.

It is a zip archive with a checksum of every part. torch does not check them, and would not detect a flipped bit in a
weight, so ``read`` checks.
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
from bench.workload.weights import first_names, reason

FORMAT = "data-parallel-bench checkpoint"
VERSION = 1
BEST = "best.pt"  # of the best epoch


@dataclass(frozen=True)
class Checkpoint:
    state: dict
    path: Path


# --- writing ----------------------------------------------------------------------------------------------------------


def save(path: Path, state: dict) -> None:
    """Write atomically: ``path`` is always the old checkpoint or the new one. Raises BenchError if it cannot."""
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        torch.save(state, file)


def in_memory(state: dict) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_memory(content: bytes) -> dict:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def keep(latest: Path, kept: Path) -> None:
    """Keep the current ``latest`` as ``kept``, also when ``latest`` is replaced: a hard link, without cost because
    ``save`` writes a new file; else a copy. Raises BenchError if neither is possible."""
    with replacing(Path(kept)) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(latest, temporary)
        except OSError:
            with open(latest, "rb") as source, temporary.open("wb") as file:
                shutil.copyfileobj(source, file)


def keep_epoch(latest: Path, epoch: int, newest: int | None) -> None:
    keep(latest, epoch_path(latest.parent, epoch))
    if newest is not None and epoch > newest:
        epoch_path(latest.parent, epoch - newest).unlink(missing_ok=True)


def epoch_path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch{epoch}.pt"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    try:
        with files.atomic_write(path, path.with_name(path.name + ".tmp")) as temporary:
            yield temporary
    except (OSError, RuntimeError) as error:
        earlier = "the earlier one is intact" if os.path.exists(path) else "there was no earlier one"
        raise BenchError(f"cannot save {path} ({reason(error)}): {earlier}") from error


# --- reading ----------------------------------------------------------------------------------------------------------


def find(text: str) -> Path:
    """The checkpoint of RESUME=text: a file, a run's latest.pt, or the newest latest.pt in a folder of runs. Raises
    UserError if there is none."""
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"RESUME={text} does not exist: use a checkpoint, a run's folder or a folder of runs")
    if (path / LATEST).is_file():
        return path / LATEST
    found = sorted(path.rglob(LATEST), key=lambda p: (p.stat().st_mtime_ns, p))
    if not found:
        raise UserError(f"RESUME={text} contains no latest.pt: use a checkpoint, or another folder of runs")
    return found[-1]


def read(path: Path) -> dict:
    """A complete checkpoint from which a run can continue. Raises UserError."""
    state = weights.read(path)
    check(state, path)
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        damaged = reason(error)
    if damaged:
        raise UserError(f"{path} is damaged ({damaged}): copy it again, or resume an earlier one")
    return state


def best_of(path: Path, rows: list[dict], metric: Metric) -> Path | None:
    """The checkpoint of the best epoch up to ``path``, in its folder; None if it was not kept. rows: its epochs. A
    best.pt in the folder may be of a later epoch than ``path``."""
    validated = [row for row in rows if row.get(metric.key) is not None and row.get("loss", 0) is not None]
    best = path.parent / BEST
    if path.name not in (LATEST, BEST):
        value = metric.best(row[metric.key] for row in validated)
        best = next((epoch_path(path.parent, row["epoch"]) for row in validated if row[metric.key] == value), best)
    return best if validated and best.exists() else None


def check(state, path: Path) -> None:
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(
            f"{path} is not a checkpoint of this project: use PRETRAINED={path} to start a new run from its weights"
        )
    version = state.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        advice = "a newer bench wrote it: update this one" if newer else "unknown version: resume another one"
        raise UserError(f"{path} is a checkpoint of version {version}, but version {VERSION} is needed: {advice}")
    if missing := [key for key in PARTS if key not in state]:
        raise UserError(f"{path} is a checkpoint without {first_names(missing)}: resume another one")
    wrong = [key for key, is_valid in PARTS.items() if not is_valid(state[key])]
    if not wrong and len(state["ranks"]) != state["world_size"]:
        wrong = ["ranks"]
    if wrong:
        raise UserError(f"{path} was not written by this project (invalid {first_names(wrong)}): resume another one")


def is_whole(value, least: int = 0) -> bool:
    return type(value) is int and least <= value < LARGEST_WHOLE


def is_finite(value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def is_dict(value) -> bool:
    return isinstance(value, dict)


def are_tensors(part) -> bool:
    return is_dict(part) and all(isinstance(value, torch.Tensor) for value in part.values())


def is_config(values) -> bool:
    """A run's options; older versions had fewer."""
    known = is_dict(values) and FIELDS.keys() & values.keys()
    return bool(known) and "optimizer" in values and all(fits(FIELDS[name], values[name]) for name in known)


def is_row(row) -> bool:
    if not is_dict(row) or not all(isinstance(value, int | float | None) for value in row.values()):
        return False
    return is_whole(row.get("epoch")) and is_whole(row.get("steps")) and is_finite(row.get("elapsed_s"))


def is_part(part) -> bool:
    return is_dict(part) and all(are_tensors(part.get(key)) for key in ("buffers", "rng"))


# Key -> check of its value: an invalid one would raise far from here, or never. A checkpoint also has ``format``,
# ``version``, ``counts`` of the current epoch over all ranks (losses, hits, examples), ``classes``, the class names or
# None (the last two are not in older files), and with EMA and SWA the state dict of torch's AveragedModel.
PARTS = {
    "model": are_tensors,  # the state dict of the UNWRAPPED model: no key starts with ``module.``, it fits every mode
    "optimizer": is_dict,  # its state dict
    "scaler": lambda value: isinstance(value, dict | None),  # the gradient scaler's state dict
    "step": is_whole,
    "images_seen": is_whole,  # over all ranks
    "loss_sum": lambda value: type(value) in (int, float),  # of the current epoch, a mean over ranks; may be NaN
    "loss_steps": is_whole,  # steps in loss_sum
    "skipped_steps": is_whole,  # skipped by the loss guard or the scaler
    "elapsed_s": is_finite,  # of training and validation, over all runs so far
    "accuracy": lambda value: isinstance(value, list) and all(map(is_row, value)),  # a row per epoch, as in the record
    "guard": lambda value: value is None or is_finite(value),  # the loss guard's mean loss
    "config": is_config,
    "num_images": lambda value: is_whole(value, 1),  # of the training set
    "world_size": lambda value: is_whole(value, 1),
    # By rank: buffers (batch norms differ in some modes), also of the averages, the state of the random numbers, the
    # names of images that could not be read.
    "ranks": lambda value: isinstance(value, list) and all(map(is_part, value)),
}
