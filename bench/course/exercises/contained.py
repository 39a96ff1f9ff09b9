"""Run a command with a limit and leave no process of it; notice when answers have changed code.

This ends what answers leave running by mistake, and files that grow without end. It is not a sandbox: reading and
sending is not limited. Grade work of people you do not trust in a container.
"""

import contextlib
import ctypes
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from bench.files import LINUX, PROC, PROJECT
from bench.process.ending import signals_as_interrupt, uninterrupted
from bench.process.tree import Tree

MOST_FILE_BYTES = 2**30
TRIES = 50  # a process may start another one while it is being ended
SET_SUBREAPER, GET_SUBREAPER = 36, 37  # of prctl(2), Linux
MODULES = (".py", ".pyc", ".pth", ".so")
CODE = (*MODULES, ".json", ".j2", ".tpl", ".css")  # or a program, whose name has no suffix
State = tuple[int, int, int]  # bytes, time of change, file mode


def run(argv: list[str], limit_s: float, environment: dict, log: Path) -> int | None:
    """As ``tree.run``, and also ends what has left the tree. Returns None after ``limit_s``. log: gets the output."""
    import psutil

    with signals_as_interrupt(), adopting_orphans() as mine, log.open("wb") as output, Tree(grace_s=0.0) as tree:
        try:
            tree.start(argv, environment, stdout=output, stderr=output)
            if LINUX:  # what it starts in its first milliseconds has no limit
                pid = tree.process.pid
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
                with contextlib.suppress(OSError):  # where memory runs out, it is ended first
                    (PROC / str(pid) / "oom_score_adj").write_text("1000")
            return tree.wait(limit_s)
        finally:
            with uninterrupted():
                end_all(mine)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[set[int]]:
    """Make orphaned descendants children of this process (Linux). Gives the ids of its earlier children."""
    import psutil

    mine = {process.pid for process in psutil.Process().children(recursive=True)}
    if not LINUX:
        yield mine
        return
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield mine
    finally:
        prctl(SET_SUBREAPER, before.value, 0, 0, 0)


def end_all(mine: set[int]) -> None:
    """End every descendant of this process except ``mine``, and what they start meanwhile."""
    import psutil

    for _ in range(TRIES):
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in mine]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1)  # orphans are children now, and are reaped
        time.sleep(0.02)


# --- Changed code -----------------------------------------------------------------------------------------------------


def code_state(folders: list[Path] | None = None, beside: list[Path] | None = None) -> dict[str, State]:
    """The state of the code that this Python runs: what an answer leaves there would run with every later notebook.

    folders: searched completely; by default those of Python, Jupyter and bench. beside: folders from which modules are
    imported first, by default the project and the working folder; only their top level is searched.
    """
    if folders is None:
        paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
        paths += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        paths += [os.path.join(sys.prefix, *place) for place in (("share", "jupyter"), ("etc", "jupyter"))]
        folders = []
        for path in sorted({Path(path).resolve() for path in [*paths, PROJECT / "bench"] if os.path.isdir(path)}):
            if not any(path.is_relative_to(other) for other in folders):  # sorted: the outer one comes first
                folders.append(path)
    found, left = {}, [*folders]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:  # deleted meanwhile
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif entry.name.endswith(CODE) or "." not in entry.name:
                    add_state(entry.path, found)
    for folder in [PROJECT, Path.cwd()] if beside is None else beside:
        with contextlib.suppress(OSError):
            for path in map(str, folder.iterdir()):
                if path.endswith(MODULES):
                    add_state(path, found)
                elif os.path.exists(module := os.path.join(path, "__init__.py")):
                    found.setdefault(module, (0, 0, 0))
    return found


def add_state(path: str, found: dict[str, State]) -> None:
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
        stat = os.stat(path, follow_symlinks=False)
        found[path] = stat.st_size, stat.st_ctime_ns, stat.st_mode  # resetting mtime changes ctime


def changed_code(before: dict[str, State], after: dict[str, State]) -> list[str]:
    """Files that are new, deleted or changed, except what Python has compiled for the first time."""
    new = {path for path in after.keys() - before.keys() if os.path.basename(os.path.dirname(path)) != "__pycache__"}
    return sorted(new | {path for path, state in before.items() if after.get(path) != state})
