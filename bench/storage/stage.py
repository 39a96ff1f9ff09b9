"""Data sets and results behind a URL: s3://bucket/prefix, file:///folder, or any other that fsspec knows.

``stage`` copies everything below a URL into a cache folder and returns the copy; ``copy_back`` copies a run's folder to
a URL. What the cache holds of one URL:

    <name>-<digest>.lock            held while a run stages it
    <name>-<digest>/data/           the copy
    <name>-<digest>/manifest.json   {url, files: {path: {size, version, mtime_ns}}}; there while data/ is whole
    <name>-<digest>/journal.jsonl   the same, a line per file, while data/ is not whole
    <name>-<digest>/parts/          files that are being fetched

``version`` is what the storage calls the state of a file: S3's ETag, else the time it was changed. Endpoint and keys of
S3 come from the ordinary AWS_* variables, which s3fs reads; no credential is printed or written.

fsspec's own ``filecache`` is no such copy: it writes single files in place, without a lock between processes, a limit
of time, or a check of what arrived and of what has gone.
"""

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
    """The local folder that holds a whole copy of everything below ``url``, with its relative paths.

    The storage is listed at every call. What is in the cache and has not changed there is kept, the rest is fetched;
    what is gone there is removed here. A URL of one file
    gives a folder with that file. Another process that stages the same URL is waited for. ``limit_s``: seconds for the
    whole call, waiting included; ``say`` is given sentences about the progress.

    Raises UserError when the storage does not answer, refuses, or holds nothing there; when the time is over; when the
    cache cannot be written or is full. What has been fetched by then is used by the next call.
    """
    remote = Remote(url, limit_s)
    copy = Copy(Path(cache) / folder_name(url))
    try:
        copy.folder.mkdir(parents=True, exist_ok=True)
        with lock(copy, remote, say):
            mirror(remote, copy, say)
    except OSError as error:  # of this machine: those of the storage have become UserError
        if error.errno in NO_SPACE:
            raise no_space(copy, error.strerror) from None
        raise UserError(
            f"{copy.folder}: cannot be used as a cache ({one_line(error)}): choose another cache folder"
        ) from None
    return copy.data


def copy_back(folder: Path, url: str, limit_s: float) -> str:
    """Copy a finished run's folder to ``url``/<its name>/ within ``limit_s`` seconds; returns that URL.

    Names that start with a dot and ``*.tmp`` are left out. ``record.json`` goes last: where it is, all the rest is.
    Raises UserError when the storage does not answer or refuses; the folder stays as it is.
    """
    folder = Path(folder).resolve()
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_result(path.relative_to(folder))]
    if not found:
        raise UserError(f"{folder} holds no files to copy to {without_credentials(url)}")
    remote = Remote(f"{url.rstrip('/')}/{folder.name}", limit_s)
    for path in sorted(found, key=lambda path: path == folder / "record.json"):
        remote.write(path, path.relative_to(folder).as_posix())
    return remote.url


def is_result(path: Path) -> bool:
    """Whether a file, named below its run's folder, is to be copied."""
    return path.suffix != ".tmp" and not any(part.startswith(".") for part in path.parts)


class Copy:
    """The cache's folder of one URL; the head of this file says what is in it."""

    def __init__(self, folder: Path):
        self.folder, self.data, self.parts = folder, folder / "data", folder / "parts"
        self.manifest, self.journal = folder / "manifest.json", folder / "journal.jsonl"

    def known(self) -> dict[str, dict]:
        """The entries of all files that were complete once: path -> {size, version, mtime_ns}."""
        known = {}
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            known |= json.loads(self.manifest.read_text())["files"]
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # the last line may have been cut off
            for line in self.journal.read_text().splitlines():
                known |= json.loads(line)
        return known

    def present(self) -> dict[str, os.stat_result]:
        paths = [Path(folder, name) for folder, _, names in os.walk(self.data) for name in names]
        return {path.relative_to(self.data).as_posix(): path.lstat() for path in paths}

    def remove(self, names) -> None:
        """Remove files of data/, and every folder that is empty then: a loader would take it for a class."""
        for name in names:
            (self.data / name).unlink()
        for folder, _, _ in os.walk(self.data, topdown=False):
            with contextlib.suppress(OSError):  # it holds something
                os.rmdir(folder)


def mirror(remote: Remote, copy: Copy, say) -> None:
    """Make data/ hold what the storage holds. The lock is held."""
    wanted, known, present = remote.files(), copy.known(), copy.present()
    good = {name: known[name] for name, file in wanted.items() if is_good(known.get(name), file, present.get(name))}
    if wanted.keys() == good.keys() == known.keys() == present.keys() and copy.manifest.exists():
        say(f"{remote.url} is in {copy.data} already: {len(good)} files")
        return

    write_text(copy.journal, "".join(journal_line(*item) for item in good.items()))
    copy.manifest.unlink(missing_ok=True)
    copy.remove(present.keys() - wanted.keys())
    copy.data.mkdir(exist_ok=True)
    shutil.rmtree(copy.parts, ignore_errors=True)  # what an interrupted run has left
    copy.parts.mkdir()
    for name, entry in download_all(remote, copy, {n: f for n, f in wanted.items() if n not in good}, say):
        good[name] = entry
    write_text(copy.manifest, json.dumps({"url": remote.url, "files": dict(sorted(good.items()))}))
    copy.journal.unlink()
    shutil.rmtree(copy.parts)


def download_all(remote: Remote, copy: Copy, todo: dict[str, RemoteFile], say):
    """Bring files into data/, several at once; yields (path, entry) as they are done and writes them to the journal.

    Raises UserError when there is no room for them.
    """
    total, needed, free = len(todo), sum(file.size for file in todo.values()), shutil.disk_usage(copy.folder).free
    if needed > free:
        raise no_space(copy, f"{needed / 2**30:.2f} GiB are needed, {free / 2**30:.2f} are free")
    say(f"staging {remote.url} into {copy.data}: {total} files, {needed / 2**30:.2f} GiB to fetch")
    done, done_bytes, began = 0, 0, time.monotonic()
    said = began
    pool = concurrent.futures.ThreadPoolExecutor(THREADS, "stage")
    try:
        names = {
            pool.submit(download, remote, copy, number, *item): item[0] for number, item in enumerate(todo.items())
        }
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
    """Bring one file into data/, whole or not at all; returns its entry for the manifest."""
    target = copy.data / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.written_whole(target, copy.parts / str(number)) as part:
        remote.fetch(file, part)
    return {"size": file.size, "version": file.version, "mtime_ns": target.stat().st_mtime_ns}


def is_good(known: dict | None, file: RemoteFile, present: os.stat_result | None) -> bool:
    """Whether the file that is present is the one that was fetched, and the storage still has that version."""
    if present is None or not same_version(known, file):
        return False
    return (present.st_size, present.st_mtime_ns) == (file.size, known.get("mtime_ns"))


def same_version(known: dict | None, file: RemoteFile) -> bool:
    """Whether a manifest's entry is of the version that the storage has now; one without a name is never the same."""
    if not isinstance(known, dict) or not file.version:
        return False
    return (known.get("size"), known.get("version")) == (file.size, file.version)


def lock(copy: Copy, remote: Remote, say):
    """Hold the copy alone; another run's staging is waited for, within the time limit."""
    path = copy.folder.with_name(f"{copy.folder.name}.lock")
    over = UserError(
        f"{remote.url}: another run has not ended staging it within the limit of {remote.limit_s:g} s "
        f"(it holds {path}); wait for it, or allow more time"
    )
    waiting = f"another run is staging {remote.url}: waiting for it"
    return files.locked(path, remote.deadline, over, lambda: say(waiting))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, while the copy is locked."""
    with files.written_whole(path, path.with_name(f".{path.name}.tmp")) as temporary:
        temporary.write_text(text)


def journal_line(name: str, entry: dict) -> str:
    return json.dumps({name: entry}) + "\n"


def folder_name(url: str) -> str:
    """The name of a URL's folder in the cache: its last part, to be recognised, and a digest."""
    address = without_user(url).rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", without_credentials(url).rpartition("/")[2])[:40]
    return f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def no_space(copy: Copy, reason: str) -> UserError:
    return UserError(f"no space left for {copy.folder} ({reason}): free some, or choose another cache folder")
