"""The progress bar: drawn by the launching process from rank 0's heartbeat."""

import math
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.config.options import RunConfig
from bench.config.workloads import workload_of


class LiveProgress:
    """Give ``watch`` to ``launch``: it draws rank 0's steps with its rate and loss, twice a second."""

    def __init__(self, config: RunConfig, console: Console, title: str):
        self.config = config
        columns = [
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[says]}"),
            TimeElapsedColumn(),
        ]
        self.progress = Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal)
        self.task = self.progress.add_task(title, total=None, says="starting")
        self.first = None  # (time, step) from which the rate is taken
        self.drawn_at = 0.0

    def __enter__(self):
        self.progress.start()
        return self.watch

    def __exit__(self, *_):
        self.progress.stop()

    def watch(self, beats: list) -> None:
        """beats: one ``Heartbeat`` or None per rank."""
        rank0, now = beats[0], time.monotonic()
        if rank0 is None or now < self.drawn_at + 0.5:
            return
        self.drawn_at = now
        says = rank0.phase
        if rank0.step and self.first is None:
            self.first = (now, rank0.step)
        elif self.first and rank0.step > self.first[1]:
            rate = (rank0.step - self.first[1]) * self.config.global_batch / (now - self.first[0])
            says = f"step {rank0.step + 1}/{rank0.total_steps}  {rate:.0f} {workload_of(self.config).units}/s"
            says += "" if math.isnan(rank0.loss) else f"  loss {rank0.loss:.3f}"
        self.progress.update(self.task, total=rank0.total_steps or None, completed=rank0.step, says=says)
        self.progress.refresh()
