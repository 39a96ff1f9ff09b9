"""Files that answers may not open while they are graded: sets with their solutions, the gradebook, and the notebook
that is being graded, which has the hidden tests in it.

Copied as ``sitecustomize.py`` to where the kernel and the Pythons that it starts find it, so it imports nothing of this
project. It stops a look that is easy to take. It is no wall: another program that an answer starts is not watched.
"""

import os
import sys

VARIABLE = "BENCH_CLOSED"  # in the environment: the paths, each of a file or a folder
OPENING = {"open", "os.listdir", "os.scandir", "os.link", "os.symlink", "os.rename", "os.remove", "shutil.copyfile",
           "shutil.copytree", "shutil.move", "sqlite3.connect", "sqlite3.connect/handle"}  # fmt: skip
JOURNALS = ("-journal", "-wal")  # at the end of a file's name: SQLite reads these files first
STARTING = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"}


def close(paths: list[str]) -> None:
    """From now on nothing below these paths can be opened, nor given to a command by its name."""
    paths = [os.path.realpath(path) for path in paths]

    def refuse(event: str, given: tuple) -> None:
        if event in OPENING:
            for place in given:
                if isinstance(place, str | bytes | os.PathLike):
                    where = os.path.realpath(os.fsdecode(place)) + os.sep
                    if any(where.startswith(path + os.sep) for path in paths):
                        raise PermissionError("answers may not look at solutions, hidden tests and points")
        elif event in STARTING and any(path in repr(given[:2]) for path in paths):  # the rest is the environment
            raise PermissionError("answers may not look at solutions, hidden tests and points")

    sys.addaudithook(refuse)


if __name__ == "sitecustomize" and os.environ.get(VARIABLE):
    close(os.environ[VARIABLE].split(os.pathsep))
