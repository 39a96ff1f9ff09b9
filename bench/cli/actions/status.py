"""`bench status`: progress of a running job, read from the heartbeats in its folder."""

import json
import time
from pathlib import Path

from rich.console import Console

from bench import files
from bench.analysis import tables
from bench.cli.base import DEFAULT_FOLDER
from bench.config.options import unchecked
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.process.heartbeat import Heartbeat, every_status, in_words, status_path
from bench.record.read import load

EVERY_S = 5.0
STILL_S = 60.0  # without progress, after which it is reported


def run(args) -> int:
    """Show every rank periodically until the run has ended; ONCE=1 shows them once."""
    folder, console = find_unfinished_run(Path(args.runs or DEFAULT_FOLDER)), tables.terminal()
    units = units_of(folder / "config.json")
    moved, before = time.monotonic(), None
    while not (folder / "record.json").exists():
        beats = every_status(folder)
        if not beats:
            raise UserError(
                f"{folder}: the ranks have exited, but there is no record yet: the run was killed, or is finishing now"
            )
        now = [beat.beats for beat in beats.values()]
        if now != before:
            moved, before = time.monotonic(), now
        show(console, folder, beats, units, time.monotonic() - moved)
        if args.once:
            return 0
        time.sleep(EVERY_S)
    console.print(f"ended ({load(folder / 'record.json').status}): {folder / 'record.json'}")
    return 0


def units_of(path: Path) -> str:
    """The units of a run, from its config. Raises UserError for a file that is not one."""
    try:
        return workload_of(unchecked(json.loads(files.read_regular_file(path).decode()))).units
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is not the config of a run ({why}): name the folder of a run") from None


def find_unfinished_run(folder: Path) -> Path:
    """The folder of the newest unfinished run at or below a folder. Raises UserError if there is none."""
    found = [path.parent for path in folder.rglob(status_path(Path(), 0).name)] if folder.is_dir() else []
    if not found:
        raise UserError(f"no run in progress in {folder}: name its folder, or the folder of all runs (RUNS)")
    return max(found, key=lambda path: status_path(path, 0).stat().st_mtime)


def show(console: Console, folder: Path, beats: dict[int, Heartbeat], units: str, still_s: float) -> None:
    still = f": no progress for {still_s:.0f} s" if still_s > STILL_S else ""
    console.print(f"{time.strftime('%H:%M:%S')} {folder.name}{still}")
    for rank, beat in beats.items():
        memory = f", {beat.window.memory_gib:.2f} GiB" if beat.window.rate else ""
        doing = f" ({beat.phase})" if beat.window.rate else ""
        console.print(f"  rank {rank}: {in_words(beat, units)}{memory}{doing}")
