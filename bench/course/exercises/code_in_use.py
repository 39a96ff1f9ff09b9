"""Whether the Python that grades is still the one that it was: an answer may write to its files, and what it leaves
there would run, and give points, with every notebook after it.

It is no wall, as all of this is none (contained.py): what Python has not compiled yet may be put there compiled.
"""

import contextlib
import os
import site
import sys
import sysconfig
from pathlib import Path

from bench.files import PROJECT

CODE = (".py", ".pyc", ".pth", ".so", ".json", ".j2", ".tpl", ".css")  # or a program, whose name has no end
CACHE = "__pycache__"  # new files come to be there whenever something is imported for the first time
State = tuple[int, int, int]  # bytes, when it was changed, and what kind of file it is


def roots() -> list[Path]:
    """The folders whose code runs here, each with all that is in it."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    paths += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    paths += [os.path.join(sys.prefix, *place) for place in (("share", "jupyter"), ("etc", "jupyter"))]
    found = []
    for path in sorted({Path(path).resolve() for path in [*paths, PROJECT / "bench"] if os.path.isdir(path)}):
        if not any(path.is_relative_to(other) for other in found):  # sorted: the outer one comes first
            found.append(path)
    return found


def state(folders: list[Path] | None = None, beside: list[Path] | None = None) -> dict[str, State]:
    """The files of code in these folders. beside: folders in which a module is looked for before, and which hold other
    things, too."""
    found = {}
    for folder in roots() if folders is None else folders:
        look_at(str(folder), found)
    for folder in [PROJECT, Path.cwd()] if beside is None else beside:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(CODE[:4]):
                    found[entry.path] = of(entry)
                elif os.path.exists(module := os.path.join(entry.path, "__init__.py")):
                    found.setdefault(module, (0, 0, 0))
    return found


def look_at(folder: str, found: dict[str, State]) -> None:
    """Add what is in a folder and below it. What is gone meanwhile is not there."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                look_at(entry.path, found)
            elif entry.name.endswith(CODE) or "." not in entry.name:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.path] = of(entry)


def of(entry: os.DirEntry) -> State:
    """A file's state. Setting back the time of its content changes the time that counts here."""
    stat = entry.stat(follow_symlinks=False)
    return stat.st_size, stat.st_ctime_ns, stat.st_mode


def changed(before: dict[str, State], after: dict[str, State]) -> list[str]:
    """The files that are new, gone or other than before; not what Python has compiled for the first time."""
    new = {path for path in after.keys() - before.keys() if os.path.basename(os.path.dirname(path)) != CACHE}
    return sorted(new | {path for path, state in before.items() if after.get(path) != state})
