"""Blocks files that answers may not open while they are graded: solutions, the gradebook, and the graded notebook with
its hidden tests.

Copied as ``sitecustomize.py`` to where the kernel and its Python children find it, so it imports nothing of this
project. It blocks only easy access; it is not a sandbox: other programs that an answer starts are not checked.
"""

import os
import shlex
import sys
from collections.abc import Iterator

VARIABLE = "BENCH_CLOSED"  # in the environment: the closed files and folders
OPENING = {"open", "os.listdir", "os.scandir", "os.link", "os.symlink", "os.rename", "os.remove", "shutil.copyfile",
           "shutil.copytree", "shutil.move", "sqlite3.connect", "sqlite3.connect/handle"}  # fmt: skip
JOURNALS = ("-journal", "-wal")  # suffixes of files that SQLite reads first
STARTING = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"}


def close(paths: list[str]) -> None:
    """Refuse to open anything below these paths, or to pass them to a command."""
    value = os.pathsep.join(paths)
    own = {f"{VARIABLE}={form}" for form in (value, shlex.quote(value))}  # horovodrun passes it on a command line
    paths = [os.path.realpath(path) for path in paths]

    def refuse(event: str, given: tuple) -> None:
        if event in OPENING:
            for place in given:
                if isinstance(place, str | bytes | os.PathLike):
                    where = os.path.realpath(os.fsdecode(place)) + os.sep
                    if any(where.startswith(path + os.sep) for path in paths):
                        raise PermissionError("answers may not look at solutions, hidden tests and points")
        elif event in STARTING:
            for word in words(given[:2]):
                for form in own:
                    word = word.replace(form, "")
                if any(path in word for path in paths):
                    raise PermissionError("answers may not look at solutions, hidden tests and points")

    sys.addaudithook(refuse)


def words(given) -> Iterator[str]:
    """The texts of a command, which may be nested in lists."""
    if isinstance(given, str | bytes | os.PathLike):
        yield os.fsdecode(given)
    elif isinstance(given, list | tuple):
        for each in given:
            yield from words(each)


if __name__ == "sitecustomize" and os.environ.get(VARIABLE):
    close(os.environ[VARIABLE].split(os.pathsep))
