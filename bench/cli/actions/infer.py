"""`bench infer FOLDER --resume CHECKPOINT`: classify a folder of images on all devices, into one table."""

import csv
import dataclasses
import shutil
import time
from pathlib import Path

from bench import files, spreadsheet
from bench.analysis import tables
from bench.cli.base import require_argument, require_writable
from bench.config import own
from bench.config.command_line import from_arguments
from bench.config.data_sets import data_kind
from bench.errors import UserError, printable
from bench.launch.devices import choose_device, device_notes
from bench.launch.launcher import launch, resolve_here
from bench.launch.progress_bar import LiveProgress
from bench.tasks.inference.rank import Plan

OURS = ("model", "image_size", "norm")  # from the checkpoint
BATCH = {"cpu": 32, "cuda": 256}
FORMS = (".csv", ".parquet")


def run(args) -> int:
    """Classify; the table is the last line."""
    folder, named = Path(require_argument("FOLDER", args.folder)).expanduser(), require_argument("RESUME", args.resume)
    to = Path(args.out or "predictions.csv")
    if to.suffix not in FORMS:
        raise UserError(f"OUT={to}: name a file that ends with {' or '.join(FORMS)}")
    if to.exists():
        raise UserError(f"{to} already exists: choose another file with OUT")
    require_writable(f"OUT={to}", to.absolute().parent)
    args.resume = args.out = None  # RESUME and OUT mean something else for a run
    asked = from_arguments(args)
    from bench.tasks.inference.files import images_below

    images = len(images_below(folder))
    plan, known = plan_of(folder, named, args.classes, asked.model)
    console = tables.terminal()
    tables.print_lines(console, device_notes(asked))
    batch = asked.per_device_batch or BATCH[choose_device(asked)]
    mode = "ddp" if asked.num_devices > 1 else "single"
    config = dataclasses.replace(
        asked, mode=mode, data=f"imagefolder:{folder}", per_device_batch=batch, precision=asked.precision or "fp32",
        baselines=False, **known,
    ).labelled(study="predict", probe=plan.text())  # fmt: skip
    began = time.perf_counter()
    with LiveProgress(config := resolve_here(config), console, "predict") as watch:
        table = launch(config, watch)
    seconds, bad = time.perf_counter() - began, move_results(table, to)
    console.print(f"{images} images by {asked.num_devices} × {config.device}, {config.model} in {config.precision}: "
                  f"{seconds:.1f} s including the start of the processes")  # fmt: skip
    if bad:
        console.print(f"{len(bad)} could not be read: {', '.join(map(printable, bad[:5]))}{', …' if bad[5:] else ''}")
    print(f"predictions: {to}", flush=True)
    return 0


def plan_of(folder: Path, named: str, classes: str | None, model: str | None) -> tuple[Plan, dict]:
    """The ranks' plan, and the options that the checkpoint sets. Raises UserError if it cannot predict."""
    from bench.training import checkpoint
    from bench.workload.weights import weights_in

    path = checkpoint.find(named).resolve()
    state = checkpoint.read(path)
    trained = state["config"]
    if trained.get("data") and not trained.get("image_size"):
        raise UserError(f"{path} was trained on DATA={trained['data']}, which has no images: use a checkpoint of a "
                        "model trained on images")  # fmt: skip
    if missing := [name for name in (*OURS, "data") if not trained.get(name)]:
        raise UserError(f"{path} is a checkpoint without its {missing[0]}: use another checkpoint")
    last = [value for value in weights_in(state["model"], path).values() if value.ndim == 1 or value.ndim == 2][-1]
    count = len(last)
    names = class_names(classes, state, trained["data"], count)
    if names and len(names) != count:
        source = "CLASSES" if classes else path.name
        raise UserError(f"{source} has {len(names)} class names, but the model in {path} has {count} classes: give "
                        f"CLASSES=file with {count} lines")  # fmt: skip
    known = {name: trained[name] for name in OURS} | {"model": model_of(trained["model"], model, path)}
    known["norm"] = "batch" if known["norm"] == "sync" else known["norm"]  # the same weights
    return Plan(str(folder.resolve()), str(path), trained["data"], count, tuple(names)), known


def model_of(trained: str, asked: str | None, path: Path) -> str:
    """The model to build. A checkpoint may be from anybody, so the user chooses the code to run, not the checkpoint.
    Raises UserError if MODEL is missing for that, or given without need."""
    if own.named(trained):
        if asked and own.named(asked):
            return asked
        raise UserError(f"{path} was trained with MODEL={trained}, whose code the checkpoint does not contain: name "
                        f"a file that you trust, MODEL={own.FORM}")  # fmt: skip
    if asked not in (None, trained):
        raise UserError(f"MODEL={asked}, but the model of {path} is {trained}: leave MODEL out")
    return trained


def class_names(file: str | None, state: dict, data: str, count: int) -> list[str]:
    """The names of the classes; empty if unknown. Raises UserError for a file that cannot be read."""
    if file:
        try:
            text = files.read_regular_file(Path(file).expanduser()).decode()
            return [line.strip() for line in text.splitlines() if line]
        except (OSError, ValueError) as error:
            raise UserError(f"CLASSES={file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if isinstance(found := state.get("classes"), list) and all(isinstance(name, str) for name in found):
        return found
    kind, place = data_kind(data)
    here = Path(place).expanduser() / "train"
    if kind == "imagefolder" and here.is_dir():
        names = sorted(entry.name for entry in here.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        return names if len(names) == count else []
    return []


def move_results(table: Path, to: Path) -> list[str]:
    """Move the table to OUT, and remove the run's files; returns the names of unreadable images."""
    from bench.report.export import save, to_parquet

    try:
        with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.DictReader(file)
            columns, bad = rows.fieldnames, [row["name"] for row in rows if row["error"]]
        if to.suffix == ".parquet":
            import pandas as pd

            kinds = {name: "float64" if name.startswith("probability") else "string" for name in columns}
            frame = pd.read_csv(table, dtype=kinds, keep_default_na=False, na_values=[""], encoding_errors="replace")
            save(to, lambda path: to_parquet(frame, path))
        else:
            save(to, lambda path: copy(table, path))
        return bad
    finally:
        shutil.rmtree(table.parent, ignore_errors=True)


def copy(table: Path, to: Path) -> None:
    """Copy the table, safe for spreadsheets: names of files and classes may be anything."""
    how = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
    with table.open(**how) as rows, to.open("w", **how) as file:
        spreadsheet.write(file, csv.reader(rows))
