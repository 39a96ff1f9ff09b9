"""Data sets and results behind a URL (s3://, file://, any that fsspec knows). The cache holds per URL a folder with
data/ (the copy), manifest.json ({url, files: {path: {size, version, mtime_ns}}}, while the copy is complete),
journal.jsonl (the same per file, while it is not) and parts/; a .lock beside it. fsspec's ``filecache`` has no lock,
time limit or check."""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from bench import files
from bench.errors import UserError
from bench.storage.remote import NO_SPACE, THREADS, Remote, RemoteFile, one_line
from bench.storage.urls import without_credentials, without_user

SAY_EVERY_S = 10


def stage(url: str, cache: Path, limit_s: float, say=lambda sentence: None) -> Path:
    """A local folder with a complete copy of everything below ``url``, updated to the storage's state. limit_s: for the
    whole call, with waiting. say: gets progress messages. Raises UserError if the storage fails, the time is up, or the
    cache is full; the next call continues."""
    remote = Remote(url, limit_s)
    copy = Copy(Path(cache) / folder_name(url))
    try:
        copy.folder.mkdir(parents=True, exist_ok=True)
        with lock(copy, remote, say):
            mirror(remote, copy, say)
    except OSError as error:  # of this machine: those of the storage have become UserError
        if error.errno in NO_SPACE:
            raise no_space(copy, error.strerror) from None
        raise UserError(f"{copy.folder} cannot be used as a cache ({one_line(error)}): choose another folder") from None
    return copy.data


def copy_back(folder: Path, url: str, limit_s: float) -> str:
    """Copy a run's folder to ``url``/<its name>/; returns that URL. record.json is copied last, so its existence shows
    a complete copy. Raises UserError."""
    folder = Path(folder).resolve()
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".tmp"]
    found = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not found:
        raise UserError(f"{folder} contains no files to copy to {without_credentials(url)}")
    remote = Remote(f"{url.rstrip('/')}/{folder.name}", limit_s)
    for path in sorted(found, key=lambda path: path == folder / "record.json"):
        remote.write(path, path.relative_to(folder).as_posix())
    return remote.url


class Copy:
    """The cache's folder of one URL; its content is described at the top of this file."""

    def __init__(self, folder: Path):
        self.folder, self.data, self.parts = folder, folder / "data", folder / "parts"
        self.manifest, self.journal = folder / "manifest.json", folder / "journal.jsonl"

    def listed_files(self) -> dict[str, dict]:
        """The files that manifest or journal list."""
        known = {}
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            known |= json.loads(self.manifest.read_text())["files"]
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # the last line may have been cut off
            for line in self.journal.read_text().splitlines():
                known |= json.loads(line)
        return known

    def existing_files(self) -> dict[str, os.stat_result]:
        paths = [Path(folder, name) for folder, _, names in os.walk(self.data) for name in names]
        return {path.relative_to(self.data).as_posix(): path.lstat() for path in paths}

    def remove(self, names) -> None:
        for name in names:
            (self.data / name).unlink()
        for folder, _, _ in os.walk(self.data, topdown=False):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(folder)


def mirror(remote: Remote, copy: Copy, say) -> None:
    wanted, known, present = remote.files(), copy.listed_files(), copy.existing_files()
    good = {name: known[name] for name, file in wanted.items() if is_good(known.get(name), file, present.get(name))}
    if wanted.keys() == good.keys() == known.keys() == present.keys() and copy.manifest.exists():
        say(f"{remote.url} is already in {copy.data}: {len(good)} files")
        return

    write_text(copy.journal, "".join(journal_line(*item) for item in good.items()))
    copy.manifest.unlink(missing_ok=True)
    copy.remove(present.keys() - wanted.keys())
    copy.data.mkdir(exist_ok=True)
    shutil.rmtree(copy.parts, ignore_errors=True)  # leftovers of an interrupted run
    copy.parts.mkdir()
    for name, entry in download_all(remote, copy, {n: f for n, f in wanted.items() if n not in good}, say):
        good[name] = entry
    write_text(copy.manifest, json.dumps({"url": remote.url, "files": dict(sorted(good.items()))}))
    copy.journal.unlink()
    shutil.rmtree(copy.parts)


def download_all(remote: Remote, copy: Copy, todo: dict[str, RemoteFile], say):
    """Fetch files in parallel; yields (path, entry) and writes the journal. Raises UserError without disk space."""
    total, needed, free = len(todo), sum(file.size for file in todo.values()), shutil.disk_usage(copy.folder).free
    if needed > free:
        raise no_space(copy, f"{needed / 2**30:.2f} GiB are needed, but {free / 2**30:.2f} are free")
    say(f"staging {remote.url} into {copy.data}: {total} files, {needed / 2**30:.2f} GiB to fetch")
    done, done_bytes, said, began = 0, 0, time.monotonic(), time.monotonic()
    pool = concurrent.futures.ThreadPoolExecutor(THREADS, "stage")
    try:
        numbered = enumerate(todo.items())
        names = {pool.submit(download, remote, copy, number, *item): item[0] for number, item in numbered}
        with copy.journal.open("a") as journal:
            for future in concurrent.futures.as_completed(names):
                name, entry = names[future], future.result()
                journal.write(journal_line(name, entry))
                journal.flush()
                yield name, entry
                done, done_bytes = done + 1, done_bytes + entry["size"]
                if time.monotonic() - said > SAY_EVERY_S or done == total:
                    said = time.monotonic()
                    size, took = done_bytes / 2**30, said - began
                    say(f"staging {remote.url}: {done} of {total} files, {size:.2f} GiB in {took:.1f} s")
    finally:
        if done < total:
            remote.stop.set()
        pool.shutdown(cancel_futures=True)


def download(remote: Remote, copy: Copy, number: int, name: str, file: RemoteFile) -> dict:
    target = copy.data / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(target, copy.parts / str(number)) as part:
        remote.fetch(file, part)
    return {"size": file.size, "version": file.version, "mtime_ns": target.stat().st_mtime_ns}


def is_good(known: dict | None, file: RemoteFile, present: os.stat_result | None) -> bool:
    """Whether the local file is complete, unchanged, and the storage's current version (False if that has none)."""
    if present is None or not isinstance(known, dict) or not file.version:
        return False
    here = {"size": present.st_size, "version": file.version, "mtime_ns": present.st_mtime_ns}
    return present.st_size == file.size and all(known.get(name) == value for name, value in here.items())


def lock(copy: Copy, remote: Remote, say):
    """Lock the copy; wait for another run within the time limit."""
    path = copy.folder.with_name(f"{copy.folder.name}.lock")
    over = UserError(
        f"{remote.url}: another run was still copying it after {remote.limit_s:g} s ({path}): allow more time"
    )
    waiting = f"another run is staging {remote.url}: waiting for it"
    return files.locked(path, remote.deadline, over, lambda: say(waiting))


def write_text(path: Path, text: str) -> None:
    with files.atomic_write(path, path.with_name(f".{path.name}.tmp")) as temporary:
        temporary.write_text(text)


def journal_line(name: str, entry: dict) -> str:
    return json.dumps({name: entry}) + "\n"


def folder_name(url: str) -> str:
    """The URL's last part and a digest."""
    address = without_user(url).rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", without_credentials(url).rpartition("/")[2])[:40]
    return f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def no_space(copy: Copy, reason: str) -> UserError:
    return UserError(f"no space left for {copy.folder} ({reason}): free some, or choose another cache folder")
