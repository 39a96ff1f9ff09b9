"""The errors a person can cause. The command line prints them as one line and exits with their code."""

import enum


class ExitCode(enum.IntEnum):
    """How a command of `bench` ends; `bench help` shows it."""

    DONE = 0, "done"
    FAILED = 1, "a run, a check or a part of this machine failed, or there is nothing to show"
    REFUSED = 2, "the request cannot be met, or a file cannot be read"
    FOUND = 3, "a mistake or a regression was found, or the batch does not fit"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"

    def __new__(cls, value: int, meaning: str):
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code


MOST_LETTERS = 2_000  # of a line on the terminal, which may quote anything


class BenchError(Exception):
    """Something went wrong that one clear line can explain."""

    exit_code = ExitCode.FAILED
    run_dir = None  # of a run that failed and left something there
    failure = None  # of a run that had begun: what its record says of how it failed

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: the line, without the way through our own code."""
        return [f"{type(self).__name__}: {self}"]


class UserError(BenchError):
    """What was asked for cannot be done: a wrong option, a missing part, an unwritable folder."""

    exit_code = ExitCode.REFUSED


class RunFailed(BenchError):
    """A run started and did not end well: a rank raised, was killed, or hung."""


def shortened(text: str, most: int = 200) -> str:
    """A message of so many letters at most: a long value is at its beginning, what is wrong with it at its end."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[3 + most // 2 - most :]}"


def as_unicode(text: str) -> str:
    """A text that can be written as UTF-8, with ? for half a character and for what is in another coding.

    >>> as_unicode("a\\udcffb")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """A text as one line that does nothing to a terminal.

    >>> printable("a\\x1b[31mb\\n c")
    'a?[31mb c'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
