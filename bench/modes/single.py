"""MODE=single: one process, one device. The base that every other mode is compared with.

Each step: forward on the batch, loss, backward, optimizer step. There is no other process, so every method of
``Mode`` keeps its default.

What to notice: on a CPU this process has all the cores. It is the baseline that decides whether distribution
paid at all.
"""

from bench.modes.base import Mode

__all__ = ["Mode"]
