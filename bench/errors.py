"""The errors that users see. The command line prints them as one line and exits with their code."""

import enum


class ExitCode(enum.IntEnum):
    """How a command of `bench` ends; `bench help` shows it."""

    DONE = 0, "done"
    FAILED = 1, "a run or a check failed, something on this machine does not work, or there is nothing to show"
    REFUSED = 2, "the request cannot be met, or a file cannot be read"
    FOUND = 3, "a mistake or a regression was found, or the batch does not fit"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"

    def __new__(cls, value: int, meaning: str):
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code


MOST_LETTERS = 2_000  # length of a line on the terminal, which may contain quoted input


class BenchError(Exception):
    """An error that one line can explain."""

    exit_code = ExitCode.FAILED
    run_dir = None  # folder of a failed run with files
    failure = None  # of a run that had started: the failure in its record

    def _render_traceback_(self) -> list[str]:
        """IPython's output: the line, without frames of our own code."""
        return [f"{type(self).__name__}: {self}"]


class UserError(BenchError):
    """The request is invalid: a wrong option, a missing package, an unwritable folder."""

    exit_code = ExitCode.REFUSED


class RunFailed(BenchError):
    """A run started and failed: a rank raised, was killed, or hung."""


def shortened(text: str, most: int = 200) -> str:
    """A message of limited length, cut in the middle: the value is at its start, the error at its end."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[3 + most // 2 - most :]}"


def as_unicode(text: str) -> str:
    """A text that can be written as UTF-8, with ? for half a character and for bytes in another encoding.

    >>> as_unicode("a\\udcffb")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """A text as one line without control sequences.

    >>> printable("a\\x1b[31mb\\n c")
    'a?[31mb c'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
