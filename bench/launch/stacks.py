"""The place of each rank of a hanging run: its main thread's own line, and whether it is in a collective. Guard
makes faulthandler write stacks to RUN_DIR/rank<r>.log on SIGUSR1; the place is the innermost frame outside any library.
In a backward pass a stack shows nothing. NCCL does not block the host, so a rank that seems to be outside a collective
is also asked for its pending collectives (torch's flight recorder)."""

import contextlib
import json
import os
import re
import signal
import sysconfig
import time
from pathlib import Path

from bench.files import PROJECT
from bench.process.guard import alive, collectives_path, wanted_path
from bench.record.privacy import short_path

MODES = PROJECT / "bench" / "modes"  # it only passes collectives on
LIBRARIES = {"site-packages", "dist-packages", "torch", "horovod"}  # folders: torch may be built from source
STANDARD = sysconfig.get_path("stdlib")
COLLECTIVE = re.compile(r"/(torch/distributed/|torch/nn/parallel/distributed\.py|horovod/)")
LOADER = re.compile(r"/torch/utils/data/dataloader\.py$")
BACKWARD = re.compile(r"/torch/autograd/graph\.py$")
THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
MORE_THREADS = "..."  # faulthandler stops after 100 threads; the main one, the last, is then missing
MORE_FRAMES = "  ..."  # and after 100 frames of a thread
OUTERMOST = {"<module>", "_run_module_as_main"}  # of a main thread
TICK_S = 0.2
ANSWER_S = 5.0  # for pending NCCL collectives: a rank checks once a second
LIMIT_S = 20.0  # for all stacks: milliseconds, unless the machine is busy


def collect(pids: dict[int, int | None], run_dir: Path) -> list[dict | None]:
    """Have every rank write its stacks now and read them. pids: rank -> process id or None. Returns a place per rank:
    file, line, function, collective (None in a backward pass); None where no complete stack was written."""
    logs = {rank: run_dir / f"rank{rank}.log" for rank in pids}
    before = {rank: size(log) for rank, log in logs.items()}
    asked = [rank for rank, pid in pids.items() if pid is not None and alive(pid)]
    for rank in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], signal.SIGUSR1)
    deadline, last, whole = time.monotonic() + LIMIT_S, None, False
    while time.monotonic() < deadline and not whole:
        time.sleep(TICK_S)
        dumps = {rank: text_from(log, before[rank]) for rank, log in logs.items()}
        whole = dumps == last and all(main_thread(dumps[rank]) or not alive(pids[rank]) for rank in asked)
        last = dumps
    places = {rank: place(dump) for rank, dump in dumps.items()}
    outside = [rank for rank, found in places.items() if found and found["collective"] is False and pids[rank]]
    for rank, text in answers(outside, run_dir).items():
        if operation := unfinished(text):
            places[rank] |= {"collective": True, "awaits": operation}
    return list(places.values())


def answers(ranks: list[int], run_dir: Path) -> dict[int, str]:
    """Ask these ranks for their pending NCCL collectives; the texts of those that answer in time."""
    found, deadline = {}, time.monotonic() + ANSWER_S
    if ranks:
        wanted_path(run_dir).touch()
    while set(found) < set(ranks) and time.monotonic() < deadline:
        time.sleep(TICK_S)
        for rank in ranks:
            with contextlib.suppress(OSError):
                found[rank] = collectives_path(run_dir, rank).read_text()
    wanted_path(run_dir).unlink(missing_ok=True)
    return found


def unfinished(text: str) -> str:
    """The first pending collective in a flight recorder dump (``_dump_nccl_trace_json``); "" if there is none."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        waiting = [entry for entry in json.loads(text)["entries"] if entry["state"] != "completed"]
        first = min(waiting, key=lambda entry: entry["collective_seq_id"], default=None)
        if first:
            name, sizes = first["profiling_name"].rpartition(":")[2], first["input_sizes"]
            return f"{name} of {' '.join(map(str, sizes)) or 'nothing'}, number {first['collective_seq_id']}"
    return ""


def place(dump: str) -> dict | None:
    """The main thread's place in a dump."""
    return place_in(main_thread(dump))


def place_in(frames: list[dict]) -> dict | None:
    """The place of a thread's frames, innermost first. awaits_batch: it waits for a DataLoader."""
    own = [frame for frame in frames if not of_library(frame["file"])]
    if not own:
        return None
    loads = any(LOADER.search(frame["file"]) for frame in frames)
    inner = frames[0]["file"] if frames[0] is not own[0] else ""
    collective = None if BACKWARD.search(inner) else COLLECTIVE.search(inner) is not None
    if collective:  # bench/modes only passes the call on: who entered?
        own = [frame for frame in own if not within(frame["file"], MODES)] or own
    file, line, function = own[0]["file"], int(own[0]["line"]), own[0]["function"]
    found = {"file": short_path(file), "line": line, "function": function, "collective": collective}
    return found | ({"awaits_batch": True} if loads and not collective else {})


def main_thread(dump: str) -> list[dict]:
    """The main thread's frames, innermost first: the last in a dump. Empty if its outermost frame is missing."""
    frames, whole = [], False
    for line in dump.splitlines():
        if THREAD.match(line) or line == MORE_THREADS:
            frames, whole = [], False
        elif frame := FRAME.match(line):
            frames.append(frame.groupdict())
            whole = frame["function"] in OUTERMOST
        elif line == MORE_FRAMES:
            whole = True
    return frames if whole else []


def of_library(file: str) -> bool:
    """Whether a file belongs to Python, torch, Horovod or another installed package, and not to the project."""
    parts = Path(file).relative_to(PROJECT).parts if within(file, PROJECT) else Path(file).parts
    standard = within(file, STANDARD) and not within(file, PROJECT / "bench")  # which may be installed below it
    return file.startswith("<") or standard or bool(LIBRARIES & set(parts[:-1]))


def within(file: str, folder) -> bool:
    return Path(file).is_relative_to(folder)


def name(place: dict) -> str:
    return f"{place['file']}:{place['line']} ({place['function']})"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def text_from(path: Path, start: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
    return ""
