"""In every Python process of ``bench time``: wait for the first optimizer.

A ``sitecustomize.py`` on PYTHONPATH calls ``install``. Processes without an optimizer (a launcher, a loader's worker)
are not changed and import nothing more. Until then the files that a process writes are recorded.
"""

import functools
import importlib.util
import json
import os
import sys

VARIABLE = "BENCH_TIME"  # in the environment: the Timer's settings, as JSON
OPTIMIZERS = "torch.optim.optimizer"


def install() -> None:
    if settings := os.environ.get(VARIABLE):
        opened = OpenedFiles()
        if json.loads(settings)["watch"]:
            opened.begin()
        if OPTIMIZERS in sys.modules:  # the machine's own sitecustomize has imported it
            patch_torch(sys.modules[OPTIMIZERS], opened)
        else:
            sys.meta_path.insert(0, ImportHook(opened))


class ImportHook:
    def __init__(self, opened: "OpenedFiles"):
        self.opened = opened

    def find_spec(self, name, path=None, target=None):
        if name != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module) -> None:
            load(module)
            patch_torch(module, self.opened)

        spec.loader.exec_module = loaded
        return spec


def patch_torch(optimizers, opened: "OpenedFiles") -> None:
    opened.patch_torch_save()
    patch_optimizer(optimizers.Optimizer, opened)


def patch_optimizer(optimizer_class: type, opened: "OpenedFiles") -> None:
    """Pass every new optimizer to ``rank``. A failure is one line and does not stop the script."""
    original = optimizer_class.__init__

    @functools.wraps(original)
    def patched(self, *arguments, **options):
        original(self, *arguments, **options)
        try:
            from bench.foreign import rank

            rank.add_optimizer(self, os.environ[VARIABLE], opened)
        except Exception as error:
            optimizer_class.__init__ = original
            text = f"bench: process {os.getpid()} cannot be timed: {type(error).__name__}: {error}"
            print(text, file=sys.stderr, flush=True)

    optimizer_class.__init__ = patched


class OpenedFiles:
    """The files that this process opens for writing or replaces by renaming, before there is a Watch."""

    def __init__(self):
        self.on, self.files, self.unpatch = False, {}, lambda: None

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
            writes = set("wax+") & set(mode) if mode else flags & (os.O_WRONLY | os.O_RDWR)
            if writes and not isinstance(path, int):
                name = os.path.abspath(os.fsdecode(path))
                status = os.stat(name) if os.path.exists(name) else None
                self.files.setdefault((name, mode), status and (status.st_mtime_ns, status.st_size))
        except Exception:  # a script can open anything
            return

    def patch_torch_save(self) -> None:
        owner = sys.modules.get("torch.serialization")
        original = getattr(owner, "_open_zipfile_writer", None)
        if not self.on or original is None:
            return

        def patched(name_or_buffer):
            if isinstance(name_or_buffer, str | os.PathLike):
                self.audit("open", (name_or_buffer, "w", 0))
            return original(name_or_buffer)

        def unpatch() -> None:
            if owner._open_zipfile_writer is patched:
                owner._open_zipfile_writer = original

        owner._open_zipfile_writer, self.unpatch = patched, unpatch

    def hand_over(self) -> list[tuple]:
        """(path, mode, (time of change, size) before) of each file. Stops, because a Watch takes over."""
        self.unpatch()
        self.on, files = False, [(*key, before) for key, before in self.files.items()]
        self.files.clear()
        return files
