"""Records of many runs in one file: FOLDER/records.jsonl.gz has one line per record,
``{"file": "RUN/record.json", "record": {…}}``.

Such a record is named by the path that its own file would have, FOLDER/RUN/record.json. ``find_files`` and
``holds_file`` take these paths and those of real files; a real file comes first. A failed run's line has the end of its
logs in ``log_tail``. `python -m tests.validation.pack` writes such files.
"""

import fnmatch
import functools
import gzip
import io
import re
import zlib
from pathlib import Path

from bench import files

PACKS = ("records.jsonl.gz", "runs.jsonl.gz")  # of a suite; of the single runs of a machine
MOST_BYTES = 2**29  # of one pack, unpacked
NAME = re.compile(r"(?:[\w+-][\w.+-]*/)*[\w+-][\w.+-]*", re.ASCII)  # no "..", and nothing a terminal would obey
LINE = re.compile(
    rf'\{{"file": "({NAME.pattern})", (?:"log_tail": "(?:[^"\\]|\\.)*", )?"record": (\{{.*\}})\}}', re.ASCII
)


def find_files(place: Path, pattern: str) -> list[Path]:
    """All files below a folder whose names match, in packs as well. ``place`` may also be a pack, or a folder in one. A
    pack that cannot be read is among the paths: reading it gives the error."""
    place = Path(place)
    found = {path for path in place.rglob(pattern) if path.name not in PACKS} if place.is_dir() else set()
    packs = [path for name in PACKS for path in place.rglob(name)] if place.is_dir() else []
    packs += [place] if place.name in PACKS else packs_above(place)
    for pack in packs:
        try:
            members = paths_in(pack)
        except ValueError:
            found.add(pack)
            continue
        found |= {path for path in members if fnmatch.fnmatchcase(path.name, pattern)
                  and (place == pack or path.is_relative_to(place))}  # fmt: skip
    return sorted(found)


def folder_of(place: Path) -> Path:
    """Where files about the records of a place are written: the folder itself, or a pack's."""
    return next(path for path in (place, *place.parents) if path.is_dir())


def holds_records(place: Path) -> bool:
    """Whether there is such a folder, on the disk or in a pack, or such a pack."""
    return place.is_dir() or (place.name in PACKS and place.is_file()) or bool(find_files(place, "*"))


def holds_file(path: Path) -> bool:
    """Whether there is such a file, on the disk or in a pack. A pack counts as a folder."""
    return path.name not in PACKS and (path.is_file() or text_in_pack(path) is not None)


def text_in_pack(path: Path) -> str | None:
    """The text of a file that only a pack holds; None for others. Raises ValueError."""
    if path.name in PACKS:
        names = list(members_of(path))
        raise ValueError(f"it contains {len(names)} records: name one of them, {path.parent / (names or ['RUN'])[0]}")
    for pack in [] if path.exists() else packs_above(path):
        text = members_of(pack).get(path.relative_to(pack.parent).as_posix())
        if text is not None:
            return text
    return None


def packs_above(path: Path) -> list[Path]:
    """The packs in the folders that a path leads through, the nearest first."""
    return [pack for folder in path.parents for name in PACKS if (pack := folder / name).is_file()]


def paths_in(pack: Path) -> list[Path]:
    return [pack.parent / name for name in members_of(pack)]


def members_of(pack: Path) -> dict[str, str]:
    """The files in a pack: name below its folder -> text. Raises ValueError."""
    try:
        status = pack.stat()
        return unpacked(pack, status.st_mtime_ns, status.st_size)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{pack}: {error}") from None


@functools.lru_cache(maxsize=64)
def unpacked(pack: Path, mtime_ns: int, size: int) -> dict[str, str]:
    """``members_of`` for one state of the file."""
    with gzip.open(io.BytesIO(files.read_regular_file(pack, MOST_BYTES))) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{pack} has more than {MOST_BYTES / 2**20:g} MiB of records when unpacked: split it")
    found = {}
    for number, line in enumerate(content.decode().split("\n"), 1):
        if line and not (parts := LINE.fullmatch(line)):
            raise ValueError(f'{pack}: line {number} is not {{"file": "RUN/record.json", "record": {{…}}}}')
        if line:
            found[parts[1]] = parts[2]
    return found
