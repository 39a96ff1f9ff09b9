"""Files that a process writes."""

import os
import socket
import sys
from pathlib import Path
from typing import ClassVar

import torch

from bench.observe.probe import Probe

listeners = []  # an audit hook stays for the life of its process, so there is one for all
installed = []
SYSTEM = {(os.sep, "dev"), (os.sep, "proc"), (os.sep, "sys")}


def audit(event: str, arguments: tuple) -> None:
    """Called by the interpreter for every audited event; all but the opening of files are of no interest."""
    if listeners and event == "open":
        for listener in listeners:
            listener(*arguments)


class Writers:
    """The files that this process writes: those that Python opens for writing, and what torch.save is given a path for.

    folder: only files below it, named from there; None: all, but hidden ones, locks and the system's. A library that
    opens its files in C is not seen.
    """

    def __init__(self, folder: Path | None = None):
        self.folder, self.names = folder and os.path.abspath(folder), set()
        if audit not in installed:
            sys.addaudithook(audit)
            installed.append(audit)
        listeners.append(self.opened)
        self.save = torch.save
        torch.save = self.saving

    def opened(self, path, mode: str | None, flags: int) -> None:
        """A file is opened, by ``open`` (mode) or by ``os.open`` (flags)."""
        writes = set("wax+") & set(mode) if mode else flags & (os.O_WRONLY | os.O_RDWR)
        if writes and not isinstance(path, int):
            self.note(path)

    def saving(self, state, file, *arguments, **options):
        """torch.save, which opens a path in C++."""
        if isinstance(file, str | os.PathLike):
            self.note(file)
        return self.save(state, file, *arguments, **options)

    def note(self, path) -> None:
        """Remember a file, if it is of interest."""
        name = os.path.abspath(os.fsdecode(path))
        if self.folder:
            if not name.startswith(self.folder + os.sep):
                return
            name = os.path.relpath(name, self.folder)
        parts = Path(name).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if not (hidden or name.endswith(".lock") or parts[:2] in SYSTEM):
            self.names.add(name)

    def close(self) -> None:
        """Look no longer."""
        if self.opened in listeners:
            listeners.remove(self.opened)
            torch.save = self.save

    def result(self) -> dict:
        """The files, and on which machine they lie: the same name on another is another file."""
        return {"host": socket.gethostname(), "names": sorted(self.names)}


def writers_of(parts: list[dict]) -> dict[str, list[int]]:
    """Which ranks wrote a file. On two machines the same name is two files."""
    ranks = {}
    for rank, part in enumerate(parts):
        for name in part["names"]:
            ranks.setdefault((part["host"], name), []).append(rank)
    several = {name for (_, name), writers in ranks.items() if len(writers) > 1}
    return {name: writers for (_, name), writers in ranks.items() if name not in several or len(writers) > 1}


class WrittenFiles(Probe):
    """The files that are written from the making of the Watch on."""

    joins: ClassVar = {"writers": writers_of}

    def __init__(self, watch):
        super().__init__(watch)
        self.writers = Writers()

    def close(self) -> None:
        self.writers.close()

    def part(self) -> dict:
        return {"writers": self.writers.result()}
