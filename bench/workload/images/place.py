"""The location of a data set's files on this machine. A URL is staged first, by one process per machine."""

from collections.abc import Callable
from pathlib import Path

from bench.config.data_sets import data_kind
from bench.config.options import RunConfig
from bench.config.sections import Files
from bench.errors import UserError
from bench.measure import node
from bench.storage import stage as storage


def find(config: RunConfig, mode, say: Callable[[str], None]) -> tuple[str, Path | None]:
    """The kind of data, and the local folder of imagefolder or tar. mode: the open mode. say: takes progress messages.
    Raises UserError if the data are not available."""
    kind, place = data_kind(config.data)
    if kind == "url":
        folder = staged(config, mode, place, say)
        return ("tar" if (folder / "train.tar").exists() else "imagefolder"), folder
    return kind, Path(place).expanduser() if place else None


def staged(config: RunConfig, mode, url: str, say: Callable[[str], None]) -> Path:
    """The local copy of a URL. A node's first process downloads missing files, and the others wait for it here."""
    mine, here = None, node.key()
    if mode.topology.local_rank == 0:
        limit_s = 0.9 * config.timeout  # the launcher's limit, whose message could not name the URL
        mine = str(storage.stage(url, cache(config), limit_s, say))
    seen = mode.gather((here, mine))  # returns when every process is here
    return Path(next(path for place, path in seen if path and place == here))


def cache(config: Files) -> Path:
    """DATA_DIR, created if missing. Raises UserError."""
    folder = Path(config.data_dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"DATA_DIR={config.data_dir}: {error.strerror}: choose a writable folder") from None
    return folder
