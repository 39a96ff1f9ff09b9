"""Find and read records."""

from pathlib import Path

from bench.errors import UserError
from bench.record.write import BadRecord, load

FOLDER = "_folder"


def find_records(folder: Path) -> tuple[list[dict], list[str]]:
    """All records below a folder, oldest first, and one sentence for each file that is no good record.

    Each record says under FOLDER where it lies; that is no part of the file.

    Raises UserError when the folder does not exist or holds no record at all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: run `make bench` first, or name the folder of your records")
    records, refused = [], []
    for path in sorted(folder.rglob("record.json")):
        try:
            records.append(load(path) | {FOLDER: str(path.parent)})
        except BadRecord as error:
            refused.append(str(error))
    if not records and not refused:
        raise UserError(f"no record.json below {folder}: run `make bench` first")
    return sorted(records, key=lambda r: r["started_at"]), refused
