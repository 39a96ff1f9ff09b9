"""MODE=single: one process, one device. The baseline of every other mode.

Each step: forward on the batch, loss, backward, optimizer step. There is no other process, so every method of
``Mode`` keeps its default.

What to notice: on a CPU this process has all the cores. This baseline shows whether distribution is worthwhile at
all.
"""

from bench.modes.base import Mode

__all__ = ["Mode"]
