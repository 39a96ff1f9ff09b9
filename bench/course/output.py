"""What ranks print, line by line as it comes, each line with its rank in front."""

from pathlib import Path

MOST_LINES = 500  # of one rank, so that a loop that prints does not fill the notebook


class RankOutput:
    """Follows the ranks' logs. Call ``show`` a few times a second.

    files: names of cells' files and what they are called in the notebook.
    """

    def __init__(self, run_dir: Path, num_ranks: int, quiet: bool = False, files: dict[str, str] | None = None):
        self.logs = [Path(run_dir) / f"rank{rank}.log" for rank in range(num_ranks)]
        self.read = [0] * num_ranks  # bytes
        self.lines = [0] * num_ranks
        self.quiet, self.files = quiet, files or {}

    def show(self, signs: object = None) -> None:
        """Print the whole lines that have come since the last call. signs: what a launcher's watch is given."""
        for rank, log in enumerate(self.logs):
            if self.quiet or not log.exists():
                continue
            with log.open("rb") as file:
                file.seek(self.read[rank])
                whole, newline, _ = file.read().rpartition(b"\n")
            self.read[rank] += len(whole) + len(newline)
            if newline:
                self.print(rank, whole.decode(errors="replace"))

    def print(self, rank: int, text: str) -> None:
        """Lines of one rank."""
        for line in self.in_words_of_the_notebook(text).split("\n"):
            self.lines[rank] += 1
            if self.lines[rank] <= MOST_LINES:
                print(f"[rank {rank}] {line}", flush=True)
            elif self.lines[rank] == MOST_LINES + 1:
                print(f"[rank {rank}] … more than {MOST_LINES} lines: the others are not shown", flush=True)

    def in_words_of_the_notebook(self, text: str) -> str:
        """A text in which a cell is called by its number, and not by the file that stands for it."""
        for name, cell in self.files.items():
            path = Path(name)
            text = text.replace(name, cell).replace(f"{path.parent.name}/{path.name}", cell)
        return text
