"""Files that are written whole or not at all."""

import contextlib
import secrets
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path):
    """Gives a temporary name beside ``path`` to write to; it becomes ``path``, replacing what was there, at the end.

    The folder is made if need be. When anything is raised inside, ``path`` stays as it was and the temporary file is
    removed. Raises OSError when something cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
