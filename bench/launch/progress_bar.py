"""A run's progress from the ranks' heartbeats: a bar in a terminal, lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.process.heartbeat import Heartbeat, in_words, line_is_due

BAR_S = 0.5  # between two drawings of the bar


class LiveProgress:
    """Give ``watch`` to ``launch``. row: formats a finished epoch's row. captures: show other output above the bar."""

    def __init__(self, config: RunConfig, console: Console, title: str, row=None, captures: bool = True):
        self.config, self.console, self.title, self.row = config, console, title, row
        texts = TextColumn("{task.description}"), TextColumn("{task.fields[says]}")
        captured = {"redirect_stdout": captures, "redirect_stderr": captures, "disable": not console.is_terminal}
        columns = texts[0], BarColumn(24), texts[1], TimeElapsedColumn()
        self.progress = Progress(*columns, console=console, auto_refresh=False, **captured)
        self.task = self.progress.add_task(title, total=None, says="starting")
        self.shown_at, self.shown, self.rows = time.monotonic(), 0, 0
        self.validated = 0  # the last shown batch of a validation

    def __enter__(self):
        self.progress.start()
        return self.watch

    def __exit__(self, *_):
        self.progress.stop()

    def watch(self, beats: list, rows: list[dict]) -> None:
        """beats: one per rank or None. rows: of finished epochs."""
        for row in rows[self.rows :] if self.row else ():
            self.console.print(self.row(row), highlight=False, markup=False)
        self.rows = len(rows)
        rank0, now = beats[0], time.monotonic()
        if rank0 is None:
            return
        if self.console.is_terminal:
            if now - self.shown_at >= BAR_S:
                self.shown_at, total = now, rank0.total_steps or None
                self.progress.update(self.task, total=total, completed=rank0.step, says=self.says(rank0), refresh=True)
        elif self.is_due(rank0, now):
            self.shown_at, self.shown, self.validated = now, rank0.step, rank0.window.batch
            self.console.print(f"{self.title}: {self.says(rank0)}", highlight=False, markup=False)

    def is_due(self, beat: Heartbeat, now: float) -> bool:
        every, since_s = self.config.print_every, now - self.shown_at
        if beat.validates:
            told = self.validated if self.validated <= beat.window.batch else 0  # of the validation before
            return line_is_due(every, beat.window.batch, told, beat.window.batches, since_s)
        return bool(beat.window.rate) and line_is_due(every, beat.step, self.shown, beat.total_steps, since_s)

    def says(self, beat: Heartbeat) -> str:
        workload = workload_of(self.config)
        said = in_words(beat, workload.units, 0 if self.config.num_processes > 1 else None)
        if beat.validates or not beat.window.rate or beat.step >= beat.total_steps:
            return said
        left = (beat.total_steps - beat.step) * self.config.global_batch * workload.per_example / beat.window.rate
        return f"{said}, {int(left // 60)}:{int(left % 60):02d} left"
