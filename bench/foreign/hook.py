"""What ``bench time`` has every Python process of a command do at its start: wait for the first optimizer.

A ``sitecustomize.py`` on PYTHONPATH calls ``install``. A process that makes no optimizer (a launcher, a loader's
worker) is left as it is: nothing but torch's module of optimizers is waited for, and nothing is imported for it.
"""

import functools
import importlib.util
import os
import sys

ASKED = "BENCH_TIME"  # in the environment: where to leave what, as JSON
OPTIMIZERS = "torch.optim.optimizer"


def install() -> None:
    """Have torch's module of optimizers looked at when it is imported."""
    if os.environ.get(ASKED):
        sys.meta_path.insert(0, WhenImported())


class WhenImported:
    """Finds one module as Python does, and is told when it is there."""

    def find_spec(self, name, path=None, target=None):
        """Python asks it for every module."""
        if name != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module) -> None:
            load(module)
            listen(module.Optimizer)

        spec.loader.exec_module = loaded
        return spec


def listen(optimizer_class: type) -> None:
    """Hand every optimizer that is made to ``rank``. A failure is one line, and never the script's."""
    original = optimizer_class.__init__

    @functools.wraps(original)
    def made(self, *arguments, **options):
        original(self, *arguments, **options)
        try:
            from bench.foreign import rank

            rank.made(self, os.environ[ASKED])
        except Exception as error:
            optimizer_class.__init__ = original
            text = f"bench: process {os.getpid()} cannot be timed: {type(error).__name__}: {error}"
            print(text, file=sys.stderr, flush=True)

    optimizer_class.__init__ = made
