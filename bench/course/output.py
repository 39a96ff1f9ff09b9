"""What ranks print, line by line as it comes, each line with its rank in front."""

import re
import textwrap
from pathlib import Path

from bench.errors import RunFailed

MOST_LINES = 500  # of one rank, so that a loop that prints does not fill the notebook
MOST_BYTES = 64 * 2**20  # of one rank, so that it does not fill the disk either
WIDEST = 2000  # characters of a line
# Frames of our own below which the notebook's function runs, and what Horovod's core and Gloo log when another rank has
# gone: the exception that follows says it again.
OUR_FRAMES = re.compile(r'  File "[^"\n]*bench/course/rank\.py", line .*\n(?:    .*\n)*')
ECHO = re.compile(r"^\[.*(Horovod background loop uncaught exception|\] Gloo connectFullMesh failed)")
SOURCE_PLACE = re.compile(r"\[/\S+\.(?:cc|cpp|h|hpp):\d+\] ")


class RankOutput:
    """Follows the ranks' logs. Call ``show`` a few times a second, and ``finish`` at the end.

    files: names of cells' files and what they are called in the notebook.
    """

    def __init__(self, run_dir: Path, num_ranks: int, quiet: bool = False, files: dict[str, str] | None = None):
        self.logs = [Path(run_dir) / f"rank{rank}.log" for rank in range(num_ranks)]
        self.read = [0] * num_ranks  # bytes
        self.lines = [0] * num_ranks
        self.quiet, self.files = quiet, files or {}

    def show(self, beats: object = None, rows: object = None) -> None:
        """Print the whole lines that have come since the last call. beats, rows: what ``supervise`` gives to a watch.

        Raises RunFailed when a rank prints without end.
        """
        for rank, log in enumerate(self.logs):
            if not log.exists():
                continue
            if log.stat().st_size > MOST_BYTES:
                raise flooded(rank)
            if not self.quiet and self.lines[rank] <= MOST_LINES:
                whole, newline, _ = self.rest(rank).rpartition(b"\n")
                self.read[rank] += len(whole) + len(newline)
                if newline:
                    self.print(rank, whole.decode(errors="replace"))

    def finish(self) -> None:
        """Print what is left: also a last line that has no end."""
        self.show()
        for rank, log in enumerate(self.logs):
            if not self.quiet and log.exists() and self.lines[rank] <= MOST_LINES and (rest := self.rest(rank)):
                self.read[rank] += len(rest)
                self.print(rank, rest.decode(errors="replace"))

    def rest(self, rank: int) -> bytes:
        with self.logs[rank].open("rb") as file:
            file.seek(self.read[rank])
            return file.read()

    def print(self, rank: int, text: str) -> None:
        """Lines of one rank, in one piece: each call is a message to the notebook."""
        said = []
        for line in self.with_cell_names(text).split("\n"):
            if ECHO.match(line):
                continue
            self.lines[rank] += 1
            if self.lines[rank] <= MOST_LINES:
                said.append(line if len(line) <= WIDEST else f"{line[:WIDEST]}…")
            elif self.lines[rank] == MOST_LINES + 1:
                said.append(f"… more than {MOST_LINES} lines: the others are not shown")
        self.say(rank, said)

    def say(self, rank: int, lines: list[str]) -> None:
        if lines and not self.quiet:
            print(*(f"[rank {rank}] {line}".rstrip() for line in lines), sep="\n", flush=True)

    def tell_errors(self, reports: list[dict], first: int | None) -> None:
        """Print the traceback of the rank that broke first, and one line of every rank that broke with it.

        reports: what the ranks have left, as Guard writes it. first: None when none of them is the cause.
        """
        for report in sorted(reports, key=lambda r: r["rank"] != first):
            if report["rank"] == first:
                self.say(first, self.with_cell_names(report["traceback"]).rstrip().split("\n"))
            else:
                why = textwrap.shorten(SOURCE_PLACE.sub("", report["message"]), 110, placeholder=" …")
                self.say(report["rank"], [f"stopped, too: {why}"])

    def with_cell_names(self, text: str) -> str:
        """A text in which a cell is called by its number, not by the file that holds it, and without the frames
        that are ours."""
        text = OUR_FRAMES.sub("", text)
        for name, cell in self.files.items():
            path = Path(name)
            text = text.replace(name, cell).replace(f"{path.parent.name}/{path.name}", cell)
        return text


def flooded(rank: int) -> RunFailed:
    """The error for a rank that prints without end."""
    error = RunFailed(f"rank {rank} has printed more than {MOST_BYTES >> 20} MiB, and was stopped")
    error.failure = {"rank": rank, "kind": "flooded", "message": str(error), "traceback": ""}
    return error
