"""Where each rank of a run that hangs is: its main thread's own line, and whether it waits there for the others.

What comes in: the stacks that Guard has faulthandler write to RUN_DIR/rank<r>.log on SIGUSR1. What goes out: a place a
rank, {"file", "line", "function", "collective"}.

A rank that waits for the others is inside a function of torch.distributed, DistributedDataParallel or Horovod that
every rank must enter. The line that a person wrote is further out: the innermost one that belongs to no library. In a
backward pass the stack proves nothing: it looks the same whether gradients are computed, or awaited from the others.
Over NCCL a collective does not keep the host: a rank waits where it next reads the device, and looks to be outside. So
a rank that looks so is asked what its NCCL has not done yet, by torch's flight recorder.
"""

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

MODES = PROJECT / "bench" / "modes"  # it puts one name to every engine's collectives
LIBRARIES = {"site-packages", "dist-packages", "torch", "horovod"}  # folders: torch may be built from source
STANDARD = sysconfig.get_path("stdlib")
COLLECTIVE = re.compile(r"/(torch/distributed/|torch/nn/parallel/distributed\.py|horovod/)")
LOADER = re.compile(r"/torch/utils/data/dataloader\.py$")
BACKWARD = re.compile(r"/torch/autograd/graph\.py$")
THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
MORE_THREADS = "..."  # faulthandler ends after a hundred threads; the main one, its last, is then not among them
MORE_FRAMES = "  ..."  # and a thread after a hundred frames
OUTERMOST = {"<module>", "_run_module_as_main"}  # functions that a main thread begins with
TICK_S = 0.2
ANSWER_S = 5.0  # for what NCCL has not done: a rank looks once a second whether it is asked
LIMIT_S = 20.0  # for all stacks to be written: it takes milliseconds, unless the machine is busy


def collect(pids: dict[int, int | None], run_dir: Path) -> list[dict | None]:
    """Have every rank write its stacks now, and read them. pids: rank -> process id, None for one that is not there.

    Returns a place for each rank; None where it has not written its main thread's stack: it is gone, or stopped.
    """
    logs = {rank: run_dir / f"rank{rank}.log" for rank in pids}
    before = {rank: size(log) for rank, log in logs.items()}
    asked = []
    for rank, pid in pids.items():
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGUSR1)
                asked.append(rank)
    deadline, last, whole = time.monotonic() + LIMIT_S, None, False
    while time.monotonic() < deadline and not whole:
        time.sleep(TICK_S)
        dumps = {rank: written(log, before[rank]) for rank, log in logs.items()}
        whole = dumps == last and all(main_thread(dumps[rank]) or not alive(pids[rank]) for rank in asked)
        last = dumps
    places = {rank: place(dump) for rank, dump in dumps.items()}
    outside = [rank for rank, found in places.items() if found and found["collective"] is False and pids[rank]]
    for rank, text in answers(outside, run_dir).items():
        if operation := unfinished(text):
            places[rank] |= {"collective": True, "awaits": operation}
    return list(places.values())


def answers(ranks: list[int], run_dir: Path) -> dict[int, str]:
    """Ask these ranks for what their NCCL has not done yet; the texts of those that answer in time."""
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
    """The first collective that a rank's NCCL has not done, in words; "" where it has done all, or said nothing.

    text: of torch's flight recorder, as ``_dump_nccl_trace_json`` gives it.

    >>> unfinished('{"entries": [{"collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "input_sizes": [[3]], '
    ...            '"state": "started", "is_p2p": false}]}')
    'all_reduce of [3], number 7'
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        waiting = [entry for entry in json.loads(text)["entries"] if entry["state"] != "completed"]
        first = min(waiting, key=lambda entry: entry["collective_seq_id"], default=None)
        if first:
            name, sizes = first["profiling_name"].rpartition(":")[2], first["input_sizes"]
            return f"{name} of {' '.join(map(str, sizes)) or 'nothing'}, number {first['collective_seq_id']}"
    return ""


def place(dump: str) -> dict | None:
    """The main thread's place in the last dump of a text: file (from the project's root; of any other its last two
    parts), line, function, and collective: True, False, or None in a backward pass. None without such a thread."""
    return place_in(main_thread(dump))


def place_in(frames: list[dict]) -> dict | None:
    """``place`` of a thread's frames, innermost first, each with file, line and function; with awaits_batch where the
    line waits for a DataLoader, or fetches a batch in this process."""
    own = [frame for frame in frames if not of_library(frame["file"])]
    if not own:
        return None
    loads = any(LOADER.search(frame["file"]) for frame in frames)
    inner = frames[0]["file"] if frames[0] is not own[0] else ""
    collective = None if BACKWARD.search(inner) else COLLECTIVE.search(inner) is not None
    if collective:  # bench/modes only passes the call on: who entered?
        own = [frame for frame in own if not within(frame["file"], MODES)] or own
    return {
        "file": short_path(own[0]["file"]),
        "line": int(own[0]["line"]),
        "function": own[0]["function"],
        "collective": collective,
        **({"awaits_batch": True} if loads and not collective else {}),
    }


def main_thread(dump: str) -> list[dict]:
    """The frames of the main thread, innermost first: the last of a dump, for faulthandler begins with the newest.

    Empty where it is not written to its outermost frame, for it may be another thread's, or go on.

    >>> main_thread('''Thread 0x7f01 (most recent call first):
    ...   File "/a/b.py", line 3 in wait
    ...
    ... Current thread 0x7f02 (most recent call first):
    ...   File "/a/c.py", line 5 in <module>
    ... ''')
    [{'file': '/a/c.py', 'line': '5', 'function': '<module>'}]
    """
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
    """Whether a file is Python's, torch's, Horovod's or another installed package's, and not the project's.

    >>> [of_library(f) for f in ("/v/lib/site-packages/torch/_tensor.py", "<frozen runpy>", "/home/jane/train.py")]
    [True, True, False]
    """
    parts = Path(file).relative_to(PROJECT).parts if within(file, PROJECT) else Path(file).parts
    standard = within(file, STANDARD) and not within(file, PROJECT / "bench")  # which may be installed below it
    return file.startswith("<") or standard or bool(LIBRARIES & set(parts[:-1]))


def within(file: str, folder) -> bool:
    """Whether a file is below a folder, by their names."""
    return Path(file).is_relative_to(folder)


def name(place: dict) -> str:
    """A place in words.

    >>> name({"file": "bench/training/epochs.py", "line": 275, "function": "validate", "collective": True})
    'bench/training/epochs.py:275 (validate)'
    """
    return f"{place['file']}:{place['line']} ({place['function']})"


def size(path: Path) -> int:
    """The bytes of a file; 0 when there is none."""
    return path.stat().st_size if path.exists() else 0


def written(path: Path, start: int) -> str:
    """The text of a file from a byte on; empty when there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
    return ""
