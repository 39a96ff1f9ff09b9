"""What ``bench time`` has every Python process of a command do at its start: wait for the first optimizer.

A ``sitecustomize.py`` on PYTHONPATH calls ``install``. A process that makes no optimizer (a launcher, a loader's
worker) is left as it is: nothing but torch's module of optimizers is waited for, and nothing is imported for it. Which
files it writes until then is remembered.
"""

import functools
import importlib.util
import json
import os
import sys

ASKED = "BENCH_TIME"  # in the environment: where to leave what, as JSON
OPTIMIZERS = "torch.optim.optimizer"


def install() -> None:
    """Have torch's module of optimizers looked at when it is imported."""
    if asked := os.environ.get(ASKED):
        opened = Opened()
        if json.loads(asked)["watch"]:
            opened.begin()
        sys.meta_path.insert(0, WhenImported(opened))


class WhenImported:
    """Finds one module as Python does, and is told when it is there."""

    def __init__(self, opened: "Opened"):
        self.opened = opened

    def find_spec(self, name, path=None, target=None):
        if name != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module) -> None:
            load(module)
            self.opened.hear_torch()
            listen(module.Optimizer, self.opened)

        spec.loader.exec_module = loaded
        return spec


def listen(optimizer_class: type, opened: "Opened") -> None:
    """Hand every optimizer that is made to ``rank``. A failure is one line, and never the script's."""
    original = optimizer_class.__init__

    @functools.wraps(original)
    def made(self, *arguments, **options):
        original(self, *arguments, **options)
        try:
            from bench.foreign import rank

            rank.made(self, os.environ[ASKED], opened)
        except Exception as error:
            optimizer_class.__init__ = original
            text = f"bench: process {os.getpid()} cannot be timed: {type(error).__name__}: {error}"
            print(text, file=sys.stderr, flush=True)

    optimizer_class.__init__ = made


class Opened:
    """The files that this process opens for writing, or puts in their place by renaming, before there is a Watch."""

    def __init__(self):
        self.on, self.files, self.end = False, {}, lambda: None

    def begin(self) -> None:
        self.on = True
        sys.addaudithook(self.audit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.files.clear)

    def audit(self, event: str, arguments: tuple) -> None:
        if not self.on or event not in ("open", "os.rename"):
            return
        try:
            path, mode, flags = (arguments[1], "w", 0) if event == "os.rename" else arguments
            if set("wax+") & set(mode) if mode else flags & (os.O_WRONLY | os.O_RDWR):
                self.note(path, mode)
        except Exception:  # whatever a script opens
            return

    def note(self, path, mode: str | None) -> None:
        """Remember a file, how it is opened, and its time of change and size before."""
        if not isinstance(path, int):
            name = os.path.abspath(os.fsdecode(path))
            status = os.stat(name) if os.path.exists(name) else None
            self.files.setdefault((name, mode), status and (status.st_mtime_ns, status.st_size))

    def hear_torch(self) -> None:
        """torch.save opens a path in C++, where the interpreter does not hear of it."""
        owner = sys.modules.get("torch.serialization")
        original = getattr(owner, "_open_zipfile_writer", None)
        if not self.on or original is None:
            return

        def saving(name_or_buffer):
            if isinstance(name_or_buffer, str | os.PathLike):
                self.audit("open", (name_or_buffer, "w", 0))
            return original(name_or_buffer)

        def end() -> None:
            if owner._open_zipfile_writer is saving:
                owner._open_zipfile_writer = original

        owner._open_zipfile_writer, self.end = saving, end

    def handed_over(self) -> list[tuple]:
        """What was heard: path, mode, and the file's time and size before. From now on a Watch listens."""
        self.end()
        self.on, files = False, [(*key, before) for key, before in self.files.items()]
        self.files.clear()
        return files
