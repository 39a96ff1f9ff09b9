"""Files that a process writes."""

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch

from bench.observe.probe import Probe, listen

listeners = []  # an audit hook stays for the life of its process, so all listeners share one
installed = []
SYSTEM = {(os.sep, "dev"), (os.sep, "proc"), (os.sep, "sys")}
CACHES = ("__pycache__", "torchinductor", "triton", "cache")  # in a folder's name: any rank may write them


def audit(event: str, arguments: tuple) -> None:
    if listeners and event in ("open", "os.rename"):
        for listener in tuple(listeners):
            listener(event, arguments)


class Writers:
    """The files that this process writes: those that Python opens for writing or replaces by renaming, and the paths
    passed to torch.save.

    folder: only files below it, with names relative to it; None: all except hidden files, locks, caches and the
    system's. Files that a library opens in C are not observed. A file opened for reading and writing, e.g. for a memory
    map, counts if it has changed.
    """

    def __init__(self, folder: Path | None = None, guarded: Callable = lambda call: call):
        self.folder, self.names, self.maybe = folder and os.path.abspath(folder), set(), {}
        if audit not in installed:
            sys.addaudithook(audit)
            installed.append(audit)
        self.listener = guarded(self.happened)
        listeners.append(self.listener)
        # torch.save opens a path in C++, always through this function.
        owner, name = torch.serialization, "_open_zipfile_writer"
        if not hasattr(owner, name):
            owner, name = torch, "save"
        self.end = listen(owner, name, guarded(self.saving))

    def happened(self, event: str, arguments: tuple) -> None:
        """A file is opened, by ``open`` (mode) or by ``os.open`` (flags), or renamed."""
        if event == "os.rename":
            self.note(arguments[1])
            return
        path, mode, flags = arguments
        if isinstance(path, int):
            return
        if only_changes(mode):
            with contextlib.suppress(OSError):
                self.maybe.setdefault(os.path.abspath(os.fsdecode(path)), stamp(path))
        elif set("wax") & set(mode) if mode else flags & (os.O_WRONLY | os.O_RDWR):
            self.note(path)

    def opened_before(self, files: list[tuple]) -> None:
        """Files that were already opened for writing: path, mode, and their ``stamp`` at that time."""
        for path, mode, before in files:
            if only_changes(mode):
                self.maybe.setdefault(path, before)
            else:
                self.note(path)

    def saving(self, arguments: tuple, options: dict) -> None:
        for file in (*arguments, *options.values()):
            if isinstance(file, str | os.PathLike):
                self.note(file)

    def note(self, path) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if self.folder:
            if not name.startswith(self.folder + os.sep):
                return
            name = os.path.relpath(name, self.folder)
        parts = Path(name).parts
        hidden = any(part.startswith(".") or any(word in part for word in CACHES) for part in parts[:-1])
        if not (hidden or parts[-1].startswith(".") or name.endswith(".lock") or parts[:2] in SYSTEM):
            self.names.add(name)

    def close(self) -> None:
        if self.listener in listeners:
            listeners.remove(self.listener)
            self.end()
            for path, before in self.maybe.items():
                with contextlib.suppress(OSError):
                    if stamp(path) != before:
                        self.note(path)

    def result(self) -> dict:
        """The files and their machine. Files deleted since were temporary and do not count."""
        there = [name for name in self.names if os.path.lexists(os.path.join(self.folder or "", name))]
        return {"host": socket.gethostname(), "names": sorted(there)}


def only_changes(mode: str | None) -> bool:
    """Whether this mode needs an existing file, and may leave it unchanged."""
    return bool(mode) and "+" in mode and not set("wax") & set(mode)


def stamp(path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def writers_of(parts: list[dict]) -> dict[str, list[int]]:
    """The ranks that wrote each file. The same name on two machines is two files."""
    ranks = {}
    for rank, part in enumerate(parts):
        for name in part["names"]:
            ranks.setdefault((part["host"], name), []).append(rank)
    several = {name for (_, name), writers in ranks.items() if len(writers) > 1}
    return {name: writers for (_, name), writers in ranks.items() if name not in several or len(writers) > 1}


class WrittenFiles(Probe):
    joins: ClassVar = {"writers": writers_of}

    def setup(self) -> None:
        self.writers = Writers(guarded=self.guarded)
        self.listening.append(self.writers.close)

    def part(self) -> dict:
        return {"writers": self.writers.result()}
