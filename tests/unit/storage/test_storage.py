"""Staging from a URL and copying back, against a real S3 server on this machine and against folders."""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.config.data_sets import data_kind
from bench.launch.ports import free_port
from bench.storage import stage as storage
from tests.runs import ROOT, refuses
from tests.s3 import KEYS, needs_s3

pytestmark = needs_s3

LIMIT_S = 40


def some_bytes(size: int, seed: str = "") -> bytes:
    """Bytes that are the same each time, and differ between seeds."""
    return hashlib.shake_256(seed.encode()).digest(size)


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def error_of(first, second, limit_s: float, *more, function=storage.stage) -> str:
    """The line with which a call is refused, within its limit of time."""
    started = time.monotonic()
    with refuses() as caught:
        function(first, second, limit_s, *more)
    assert time.monotonic() - started < limit_s + 20
    line = str(caught.value)
    assert len(line) < 500
    assert not any(KEYS[name] in line for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    return line


def reading(request, key: str = "") -> bool:
    return request.is_read and request.path.endswith(key)


def no_file_looks_whole(cache: Path, wanted: dict[str, bytes]) -> None:
    """There is no manifest, and what lies in data/ is right."""
    assert not list(cache.rglob("manifest.json"))
    for data in cache.glob("*/data"):
        assert content(data).items() <= wanted.items()


def test_what_is_a_url():
    for text in ("s3://bucket/prefix", "file:///x", "memory://x", "gs://x"):
        assert data_kind(text) == ("url", text)
    for text in ("", "digits", "/data/s3", "C://x", "C:\\x", "s3:/x", "://x", "data/s3://x", "1a://x"):
        assert data_kind(text)[0] != "url", text


def test_everything_below_a_prefix_is_copied(bucket, tmp_path, monkeypatch):
    """A second call lists, and fetches and writes nothing. OBS is read over S3."""
    wanted = {"cat/1.png": some_bytes(2500), "cat/empty": b"", "manifest.json": b"theirs", "dog/ä b?.png": b"x"}
    for name, value in wanted.items():
        bucket.put(f"set/{name}", value)
    bucket.put_in_parts("set/shard.tar", some_bytes(5000, "tar"))
    wanted["shard.tar"] = some_bytes(5000, "tar")
    for other in ("set/", "set/dog/", "set2/1.png", "1.png"):  # two marks of folders, and what lies elsewhere
        bucket.put(other, b"")
    data = storage.stage(bucket.url("set"), tmp_path / "s3", LIMIT_S)
    assert content(data) == wanted
    kept = json.loads((data.parent / "manifest.json").read_text())
    assert kept["url"] == bucket.url("set")
    assert {name: entry["size"] for name, entry in kept["files"].items()} == {n: len(v) for n, v in wanted.items()}
    assert not list(tmp_path.rglob("parts")) and not list(tmp_path.rglob("journal*"))
    everything = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert KEYS["AWS_ACCESS_KEY_ID"].encode() not in everything
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in everything

    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    bucket.server.requests.clear()
    assert storage.stage(bucket.url("set") + "/", tmp_path / "s3", LIMIT_S) == data
    assert [(r.path, "list-type=2" in r.query) for r in bucket.server.requests] == [(f"/{bucket.name}", True)]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before

    obs = bucket.url("set").replace("s3:", "obs:")
    assert content(storage.stage(obs, tmp_path / "obs", LIMIT_S)) == wanted
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert "AWS_ENDPOINT_URL" in error_of(obs, tmp_path / "obs", LIMIT_S)


def test_folders_and_files_by_file_url(tmp_path):
    """A file becomes a folder, and the reverse."""
    source, cache = tmp_path / "source", tmp_path / "cache"
    for wanted in ({"sub/x": some_bytes(2500), "sub/empty": b""}, {"sub": b"a file"}, {"sub/x": some_bytes(2500, "b")}):
        shutil.rmtree(source, ignore_errors=True)
        for name, value in wanted.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(value)
        assert content(storage.stage(f"file://{source}", cache, LIMIT_S)) == wanted
    assert content(storage.stage(f"file://{source}/sub/x", cache, LIMIT_S)) == {"x": some_bytes(2500, "b")}
    assert f"{source}/sub/x/cache" in error_of(f"file://{source}", source / "sub" / "x" / "cache", LIMIT_S)


def test_only_what_has_changed_in_the_storage_is_fetched(bucket, tmp_path):
    for name in ("same/1", "changed/1", "gone/1"):
        bucket.put(f"set/{name}", name.encode())
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    bucket.put("set/changed/1", b"CHANGED/1")  # of the same size
    bucket.put("set/new/1", b"new")
    bucket.client.delete_object(Bucket=bucket.name, Key="set/gone/1")
    bucket.server.requests.clear()
    assert storage.stage(bucket.url("set"), tmp_path, LIMIT_S) == data
    assert content(data) == {"same/1": b"same/1", "changed/1": b"CHANGED/1", "new/1": b"new"}
    assert sorted(p.name for p in data.iterdir()) == ["changed", "new", "same"]  # an empty folder would be a class
    assert len(bucket.server.reads()) == 2 and bucket.server.reads("changed/1") and bucket.server.reads("new/1")


def test_a_copy_that_was_changed_here_is_fetched_again(bucket, tmp_path):
    wanted = {name: f"the bytes of {name}".encode() for name in ("fine", "touched", "shorter", "edited", "missing")}
    for name, value in wanted.items():
        bucket.put(f"set/{name}", value)
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    os.utime(data / "touched", (1, 1))
    (data / "shorter").write_bytes(b"the")
    (data / "edited").write_bytes(b"other bytes, as many"[: len(wanted["edited"])])
    (data / "missing").unlink()
    (data / "stray").write_bytes(b"x")
    for fetched in (["edited", "missing", "shorter", "touched"], []):  # the second call finds all in order again
        bucket.server.requests.clear()
        storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
        assert content(data) == wanted
        assert sorted(path.rpartition("/")[2] for path in bucket.server.reads()) == fetched


def test_a_file_that_was_interrupted_is_fetched_again_whole(bucket, tmp_path):
    wanted = {"big": some_bytes(5500), "small": b"small"}
    bucket.put_in_parts("set/big", wanted["big"])
    bucket.put("set/small", wanted["small"])
    bucket.server.fault = lambda r: (403, b"") if reading(r, "big") else None
    assert "big" in error_of(bucket.url("set"), tmp_path, LIMIT_S)
    no_file_looks_whole(tmp_path, wanted)
    (parts,) = tmp_path.glob("*/parts")
    (parts / "0").write_bytes(b"what a killed run has left")
    bucket.server.fault = lambda r: None
    bucket.server.requests.clear()
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == wanted
    assert len(bucket.server.reads("big")) == 1 and not list(tmp_path.rglob("parts"))


@pytest.mark.parametrize("store, size", [("put", 3000), ("put_in_parts", 3000), ("put", 500)])
def test_a_file_that_changes_while_it_is_fetched_is_no_copy(bucket, tmp_path, store, size):
    getattr(bucket, store)("set/big", some_bytes(3000))

    def replace(request):
        if reading(request, "big"):
            bucket.server.fault = lambda r: None
            getattr(bucket, store)("set/big", some_bytes(size, "newer"))

    bucket.server.fault = replace
    assert "big" in error_of(bucket.url("set"), tmp_path, LIMIT_S)
    no_file_looks_whole(tmp_path, {})
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == {"big": some_bytes(size, "newer")}


def test_an_endpoint_that_is_dead_or_never_answers_ends_within_the_limit(bucket, tmp_path, monkeypatch):
    """A dead one is tried again, and not for longer than allowed."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for port in (free_port(), mute.getsockname()[1]):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            line = error_of("s3://somewhere/set", tmp_path, 1)
            assert "s3://somewhere/set" in line and "AWS_ENDPOINT_URL" in line
    assert "1 s" in line  # the limit


def test_a_download_that_stands_still_ends_within_the_limit(bucket, tmp_path):
    bucket.put("set/big", some_bytes(5500))
    ended = threading.Event()
    bucket.server.fault = lambda r: ended.wait(30) and None if reading(r) else None
    assert "4 s" in error_of(bucket.url("set"), tmp_path, 4)  # the listing takes a while
    ended.set()
    no_file_looks_whole(tmp_path, {})


@pytest.mark.parametrize("what", ["bucket", "prefix", "denied", "credentials"])
def test_what_repeating_does_not_help_is_not_repeated(bucket, tmp_path, monkeypatch, what):
    bucket.put("set/a", b"aaa")
    bucket.server.requests.clear()
    url = {"bucket": "s3://no-such-bucket/set", "prefix": f"s3://{bucket.name}/nothing"}.get(what, bucket.url("set"))
    if what == "denied":
        denied = f"<Error><Code>Denied</Code><Message>key {KEYS['AWS_ACCESS_KEY_ID']}</Message></Error>"
        bucket.server.fault = lambda r: (403, denied.encode())
    if what == "credentials":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    line = error_of(url, tmp_path, LIMIT_S)
    assert url in line and ("AWS_ACCESS_KEY_ID" in line) == (what in ("denied", "credentials"))
    requests = [(r.method, r.query) for r in bucket.server.requests]
    assert len(requests) == len(set(requests))


@pytest.mark.parametrize("keys", [["a/../../b"], ["a", "a/b"]])
def test_a_path_that_has_no_place_in_a_folder(bucket, tmp_path, keys):
    for key in keys:
        bucket.put(f"set/{key}", b"x")
    assert repr(keys[0]) in error_of(bucket.url("set"), tmp_path, LIMIT_S)
    assert not list(tmp_path.rglob("b"))


def refused_lines(first: str, *calls: str) -> list[str]:
    """What a process prints in which these calls are refused: a line each."""
    code = (
        "import resource, sys\nfrom bench.storage import stage as storage\nassert 'fsspec' not in sys.modules\n" + first
    )
    for call in calls:
        code += f"\ntry:\n    {call}\nexcept storage.UserError as error:\n    print(error)\n"
    # -B: Python would leave cut-off bytecode behind
    result = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    lines = result.stdout.splitlines()
    assert len(lines) == len(calls), result.stderr
    return lines


def test_a_package_that_is_missing(tmp_path):
    """By the module that is missing, fsspec last: the others ask for it."""
    expected = {
        "nothing": ("nonsense://x", ["nonsense://x"]),
        "paramiko": ("sftp://me:secret@host/x", ["sftp://host/x"]),
        "s3fs": ("s3://b/x", ["s3://b/x", "s3fs", "data-parallel-bench[data]"]),
        "fsspec": ("file:///x", ["file:///x", "fsspec", "data-parallel-bench[data]"]),
    }
    without = "def without(name, url):\n    sys.modules[name] = None\n    storage.stage(url, sys.argv[0], 5)"
    lines = refused_lines(without, *(f"without({name!r}, {url!r})" for name, (url, _) in expected.items()))
    for line, (_, values) in zip(lines, expected.values(), strict=True):
        assert all(value in line for value in values) and "secret" not in line


def test_another_run_that_never_ends_staging_is_not_waited_for_without_limit(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x").touch()
    url, cache = f"file://{tmp_path}/source", tmp_path / "cache"
    storage.stage(url, cache, LIMIT_S)
    (lock,) = cache.glob("*.lock")
    said = []
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert url in error_of(url, cache, 0.5, said.append)
    (line,) = said
    assert url in line
    storage.stage(url, cache, LIMIT_S)


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "runs" / "2026-ddp-2"
    (folder / "trace").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("record.json", "rank0.log", "trace/rank0.json", "zz.txt", ".rank0.status", "a.tmp", ".hidden/x"):
        (folder / name).write_text(name)
    return folder


RESULTS = {name: name.encode() for name in ("record.json", "rank0.log", "trace/rank0.json", "zz.txt")}


def test_results_are_copied_with_the_record_last(bucket, run_dir, tmp_path):
    url = storage.copy_back(run_dir, bucket.url("results") + "/", LIMIT_S)
    assert url == bucket.url("results/2026-ddp-2")
    assert bucket.objects() == {f"results/2026-ddp-2/{name}": value for name, value in RESULTS.items()}
    puts = [r.path for r in bucket.server.requests if r.method == "PUT"]
    assert len(puts) == 4 and puts[-1].endswith("/record.json")
    assert content(storage.stage(url, run_dir.parent / "cache", LIMIT_S)) == RESULTS
    for _ in range(2):  # to a folder; once more does no harm
        assert storage.copy_back(run_dir, f"file://{tmp_path}/there", LIMIT_S) == f"file://{tmp_path}/there/2026-ddp-2"
        assert content(tmp_path / "there" / "2026-ddp-2") == RESULTS
    assert str(tmp_path / "none") in error_of(tmp_path / "none", url, LIMIT_S, function=storage.copy_back)


def test_results_that_cannot_all_be_copied_have_no_record(bucket, run_dir):
    before = content(run_dir)
    bucket.server.fault = lambda r: (403, b"") if r.method == "PUT" and r.path.endswith("zz.txt") else None
    line = error_of(run_dir, bucket.url(), LIMIT_S, function=storage.copy_back)
    assert bucket.url("2026-ddp-2") in line and "zz.txt" in line
    assert "2026-ddp-2/record.json" not in bucket.objects()
    assert content(run_dir) == before
    failures = [503, 503]
    bucket.server.fault = lambda r: (failures.pop(), b"") if failures else None
    storage.copy_back(run_dir, bucket.url(), LIMIT_S)
    assert len(bucket.objects()) == 4


def test_a_full_disk_leaves_nothing_that_looks_whole(run_dir, tmp_path):
    """No file can be longer than 100 kB: a write fails as at the end of a disk."""
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    wanted = {"big": some_bytes(300_000), "small": b"small"}
    for name, value in wanted.items():
        (source / name).write_bytes(value)
    (run_dir / "record.json").write_bytes(some_bytes(300_000))
    staged, copied = refused_lines(
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))",
        f"storage.stage('file://{source}', '{cache}', 20)",
        f"storage.copy_back('{run_dir}', 'file://{tmp_path}/there', 20)",
    )
    assert f"{cache}/source-" in staged
    no_file_looks_whole(cache, wanted)
    assert content(storage.stage(f"file://{source}", cache, LIMIT_S)) == wanted
    assert f"file://{tmp_path}/there/{run_dir.name}" in copied and "record.json" in copied
    assert not (tmp_path / "there" / run_dir.name / "record.json").exists()
