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
from bench.errors import UserError
from bench.storage import stage as storage
from tests.runs import ROOT
from tests.s3 import KEYS, needs_s3

LIMIT_S = 30


def some_bytes(size: int, seed: str = "") -> bytes:
    """Bytes that are the same each time, and differ between seeds."""
    return hashlib.shake_256(seed.encode()).digest(size)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def manifest(data: Path) -> dict:
    """The manifest of a staged copy."""
    return json.loads((data.parent / "manifest.json").read_text())


def error_of(*arguments, function=storage.stage) -> str:
    """The one line that a call fails with."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 500
    assert not any(KEYS[name] in line for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    return line


def reads(bucket, key: str = "") -> list[str]:
    """The paths ending so that were asked for, in order."""
    asked = [r for r in bucket.server.requests if r.method == "GET" and "list-type" not in r.query]
    return [r.path for r in asked if r.path.endswith(key)]


def reading(request, key: str = "") -> bool:
    """Whether a request is for the bytes of a file."""
    return request.method == "GET" and "list-type" not in request.query and request.path.endswith(key)


def no_file_looks_whole(cache: Path, wanted: dict[str, bytes]) -> None:
    """There is no manifest, and what lies in data/ is right."""
    assert not list(cache.rglob("manifest.json"))
    for data in cache.glob("*/data"):
        assert content(data).items() <= wanted.items()


@pytest.mark.parametrize("text", ["s3://bucket/prefix", "file:///x", "memory://x", "gs://x"])
def test_a_url(text):
    assert data_kind(text) == ("url", text)


@pytest.mark.parametrize("text", ["", "digits", "/data/s3", "C://x", "C:\\x", "s3:/x", "://x", "data/s3://x", "1a://x"])
def test_no_url(text):
    assert data_kind(text)[0] != "url"


# --- a copy -----------------------------------------------------------------------------------------------------------


@needs_s3
def test_everything_below_a_prefix_is_copied(bucket, tmp_path):
    wanted = {"cat/1.png": some_bytes(2500), "cat/empty": b"", "manifest.json": b"theirs", "dog/ä b?.png": b"x"}
    for name, value in wanted.items():
        bucket.put(f"set/{name}", value)
    bucket.put_in_parts("set/shard.tar", some_bytes(5000, "tar"))
    wanted["shard.tar"] = some_bytes(5000, "tar")
    for other in ("set/", "set/dog/", "set2/1.png", "1.png"):  # two marks of folders, and what lies elsewhere
        bucket.put(other, b"")
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    assert content(data) == wanted
    kept = manifest(data)
    assert kept["url"] == bucket.url("set")
    assert {name: entry["size"] for name, entry in kept["files"].items()} == {n: len(v) for n, v in wanted.items()}
    assert not list(tmp_path.rglob("parts")) and not list(tmp_path.rglob("journal*"))
    everything = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert KEYS["AWS_ACCESS_KEY_ID"].encode() not in everything
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in everything


@needs_s3
def test_obs_is_read_over_s3(bucket, tmp_path, monkeypatch):
    bucket.put("set/a", b"aaa")
    url = bucket.url("set").replace("s3:", "obs:")
    assert content(storage.stage(url, tmp_path, LIMIT_S)) == {"a": b"aaa"}
    assert error_of(url.replace("set", "nothing"), tmp_path, LIMIT_S).startswith(f"obs://{bucket.name}/nothing: ")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert "set AWS_ENDPOINT_URL" in error_of(url, tmp_path, LIMIT_S)


@needs_s3
def test_a_second_call_lists_and_fetches_nothing(bucket, tmp_path):
    bucket.put("set/a", b"aaa")
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    bucket.server.requests.clear()
    said = []
    assert storage.stage(bucket.url("set") + "/", tmp_path, LIMIT_S, said.append) == data
    assert [(r.path, "list-type=2" in r.query) for r in bucket.server.requests] == [(f"/{bucket.name}", True)]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert len(said) == 1 and "already" in said[0]


@needs_s3
def test_only_what_has_changed_in_the_storage_is_fetched(bucket, tmp_path):
    for name in ("same/1", "changed/1", "gone/1"):
        bucket.put(f"set/{name}", name.encode())
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    bucket.put("set/changed/1", b"CHANGED/1")  # of the same size
    bucket.put("set/new/1", b"new")
    bucket.delete("set/gone/1")
    bucket.server.requests.clear()
    assert storage.stage(bucket.url("set"), tmp_path, LIMIT_S) == data
    assert content(data) == {"same/1": b"same/1", "changed/1": b"CHANGED/1", "new/1": b"new"}
    assert sorted(p.name for p in data.iterdir()) == ["changed", "new", "same"]  # an empty folder would be a class
    assert manifest(data)["files"].keys() == content(data).keys()
    assert len(reads(bucket)) == 2 and reads(bucket, "changed/1") and reads(bucket, "new/1")


@needs_s3
def test_a_copy_that_could_not_be_brought_up_to_date_does_not_look_whole(bucket, tmp_path):
    bucket.put("set/a", b"aaa")
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    assert manifest(data)
    bucket.put("set/b", b"bbb")
    bucket.server.fault = lambda r: (403, b"") if reading(r) else None
    error_of(bucket.url("set"), tmp_path, LIMIT_S)
    no_file_looks_whole(tmp_path, {"a": b"aaa"})
    bucket.server.fault = lambda r: None
    bucket.server.requests.clear()
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == {"a": b"aaa", "b": b"bbb"}
    assert not reads(bucket, "/a")


@needs_s3
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
        assert sorted(path.rpartition("/")[2] for path in reads(bucket)) == fetched


@pytest.mark.parametrize("before, after", [("a", "a/b"), ("a/b", "a")])
def test_a_file_becomes_a_folder_and_the_reverse(tmp_path, before, after):
    source = tmp_path / "source"
    for name in (before, after):
        shutil.rmtree(source, ignore_errors=True)
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text(name)
        data = storage.stage(f"file://{source}", tmp_path / "cache", LIMIT_S)
        assert content(data) == {name: name.encode()}


def test_a_folder_and_one_file_by_file_url(tmp_path):
    source = tmp_path / "source" / "sub"
    source.mkdir(parents=True)
    (source / "x").write_bytes(some_bytes(2500))
    (source / "empty").touch()
    cache = tmp_path / "cache"
    data = storage.stage(f"file://{tmp_path}/source", cache, LIMIT_S)
    assert content(data) == {"sub/x": some_bytes(2500), "sub/empty": b""}
    assert content(storage.stage(f"file://{source}/x", cache, LIMIT_S)) == {"x": some_bytes(2500)}
    (source / "x").write_bytes(some_bytes(2500, "other"))
    assert content(storage.stage(f"file://{tmp_path}/source", cache, LIMIT_S))["sub/x"] == some_bytes(2500, "other")


# --- interruptions ----------------------------------------------------------------------------------------------------


@needs_s3
@pytest.mark.parametrize("store", ["put", "put_in_parts"])
def test_a_file_that_was_interrupted_is_fetched_again_whole(bucket, tmp_path, store):
    wanted = {"big": some_bytes(5500), "small": b"small"}
    getattr(bucket, store)("set/big", wanted["big"])
    bucket.put("set/small", wanted["small"])
    bucket.server.fault = lambda r: (403, b"") if reading(r, "big") else None
    assert "big" in error_of(bucket.url("set"), tmp_path, LIMIT_S)
    no_file_looks_whole(tmp_path, wanted)
    (parts,) = tmp_path.glob("*/parts")
    (parts / "0").write_bytes(b"what a killed run has left")
    bucket.server.fault = lambda r: None
    bucket.server.requests.clear()
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == wanted
    assert len(reads(bucket, "big")) == 1 and not list(tmp_path.rglob("parts"))


@needs_s3
def test_what_was_complete_when_another_file_failed_is_not_fetched_again(bucket, tmp_path, monkeypatch):
    for n in range(20):
        bucket.put(f"set/{n}", b"small")
    bucket.put("set/zz", some_bytes(3000))
    monkeypatch.setattr(storage, "THREADS", 2)
    bucket.server.fault = lambda r: (403, b"") if r.path.endswith("zz") else None
    error_of(bucket.url("set"), tmp_path, LIMIT_S)
    complete = {p.name for p in tmp_path.glob("*/data/*")}
    assert len(complete) >= 10
    bucket.server.fault = lambda r: None
    bucket.server.requests.clear()
    data = storage.stage(bucket.url("set"), tmp_path, LIMIT_S)
    assert len(content(data)) == 21
    again = {path.rpartition("/")[2] for path in reads(bucket)} & complete
    assert len(again) <= storage.THREADS  # those whose line in the journal was not written yet


@needs_s3
@pytest.mark.parametrize("store, size", [("put", 3000), ("put_in_parts", 3000), ("put", 1500), ("put", 500)])
def test_a_file_that_changes_while_it_is_fetched_is_no_copy(bucket, tmp_path, store, size):
    getattr(bucket, store)("set/big", some_bytes(3000))

    def replace(request):
        if reading(request, "big"):
            bucket.server.fault = lambda r: None
            getattr(bucket, store)("set/big", some_bytes(size, "newer"))

    bucket.server.fault = replace
    assert "changed while it was fetched" in error_of(bucket.url("set"), tmp_path, LIMIT_S)
    no_file_looks_whole(tmp_path, {})
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == {"big": some_bytes(size, "newer")}


@needs_s3
@pytest.mark.parametrize("times", [1, 2])
def test_bytes_that_are_not_those_of_the_checksum(bucket, tmp_path, times):
    bucket.put("set/a", b"right")
    answers = [(200, b"wrong")] * times
    bucket.server.fault = lambda r: answers.pop() if reading(r) and answers else None
    if times == 1:
        assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == {"a": b"right"}
    else:
        assert "MD5" in error_of(bucket.url("set"), tmp_path, LIMIT_S)
        no_file_looks_whole(tmp_path, {})


@needs_s3
def test_the_etag_of_a_file_encrypted_by_kms_is_not_taken_for_its_md5(bucket, tmp_path):
    bucket.put("set/a", b"ENCRYPTED", ServerSideEncryption="aws:kms")  # moto's ETag is of these bytes
    bucket.server.fault = lambda r: (200, b"plaintext") if reading(r) else None
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == {"a": b"plaintext"}


# --- limits -----------------------------------------------------------------------------------------------------------


@needs_s3
def test_a_server_that_stumbles_is_asked_again(bucket, tmp_path):
    bucket.put("set/a", b"aaa")
    listing, answers = [500, 504], [503, 502]

    def fault(request):
        left = answers if reading(request) else listing
        return (left.pop(), b"") if left else None

    bucket.server.fault = fault
    assert content(storage.stage(bucket.url("set"), tmp_path, LIMIT_S)) == {"a": b"aaa"}
    assert not listing and not answers


def free_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@needs_s3
def test_a_dead_endpoint_ends_within_the_limit(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    started = time.monotonic()
    line = error_of("s3://somewhere/set", tmp_path, 3)
    assert time.monotonic() - started < 30  # it is tried again, and not for longer than allowed
    assert line.startswith("s3://somewhere/set: ") and "AWS_ENDPOINT_URL" in line


@needs_s3
def test_an_endpoint_that_never_answers_ends_within_the_limit(bucket, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{mute.getsockname()[1]}")
        started = time.monotonic()
        line = error_of("s3://somewhere/set", tmp_path, 1)
    assert 0.9 < time.monotonic() - started < 25
    assert "s3://somewhere/set: not done within the limit of 1 s" in line and "AWS_ENDPOINT_URL" in line


@needs_s3
def test_a_download_that_stands_still_ends_within_the_limit(bucket, tmp_path):
    bucket.put("set/big", some_bytes(5500))
    ended = threading.Event()
    bucket.server.fault = lambda r: ended.wait(30) and None if reading(r) else None
    started = time.monotonic()
    assert "not done within the limit of 4 s" in error_of(bucket.url("set"), tmp_path, 4)  # the listing takes a while
    assert time.monotonic() - started < 25
    ended.set()
    no_file_looks_whole(tmp_path, {})


@needs_s3
@pytest.mark.parametrize(
    "url, answer, words",
    [
        ("s3://no-such-bucket/set", None, "check the name of the bucket"),
        ("s3://BUCKET/nothing", None, "nothing is stored there"),
        (
            "s3://BUCKET/set",
            (403, f"<Error><Code>Denied</Code><Message>key {KEYS['AWS_ACCESS_KEY_ID']}</Message></Error>".encode()),
            "check AWS_ACCESS_KEY_ID",
        ),
    ],
    ids=["bucket", "prefix", "denied"],
)
def test_what_repeating_does_not_help_is_not_repeated(bucket, tmp_path, url, answer, words):
    bucket.put("set/a", b"aaa")
    bucket.server.requests.clear()
    bucket.server.fault = lambda r: answer
    url = url.replace("BUCKET", bucket.name)
    line = error_of(url, tmp_path, LIMIT_S)
    assert line.startswith(f"{url}: ") and words in line
    requests = [(r.method, r.query) for r in bucket.server.requests]
    assert len(requests) == len(set(requests))


@needs_s3
def test_without_credentials(bucket, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "Unable to locate credentials; check AWS_ACCESS_KEY_ID" in error_of(bucket.url("set"), tmp_path, LIMIT_S)


@needs_s3
@pytest.mark.parametrize("keys", [["a/../../b"], ["a", "a/b"]])
def test_a_path_that_has_no_place_in_a_folder(bucket, tmp_path, keys):
    for key in keys:
        bucket.put(f"set/{key}", b"x")
    assert "cannot be a file in a folder" in error_of(bucket.url("set"), tmp_path, LIMIT_S)
    assert not list(tmp_path.rglob("b"))


@pytest.mark.parametrize(
    "missing, url, words",
    [
        ("fsspec", "file:///x", "file:///x needs fsspec: pip install 'data-parallel-bench[data]'"),
        ("s3fs", "s3://b/x", "s3://b/x needs s3fs: pip install 'data-parallel-bench[data]'"),
        ("paramiko", "sftp://me:secret@host/x", "sftp://host/x needs a package that is not installed: "),
        ("nothing", "nonsense://x", "nonsense://x cannot be opened: "),
    ],
)
def test_a_package_that_is_missing(tmp_path, missing, url, words):
    code = f"""
import sys
from bench.storage import stage as storage
assert "fsspec" not in sys.modules
sys.modules[{missing!r}] = None
try:
    storage.stage({url!r}, {str(tmp_path)!r}, 5)
except storage.UserError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith(words) and result.stdout.count("\n") == 1, result.stderr
    assert "secret" not in result.stdout


def on_a_full_disk(call: str) -> str:
    """What a process prints in which no file can be longer than 100 kB: a write fails as at the end of a disk."""
    code = f"""
import resource
from bench.storage import stage as storage
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    {call}
except storage.UserError as error:
    print(error)
"""
    # -B: Python would leave cut-off bytecode behind
    result = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.count("\n") == 1, result.stderr
    return result.stdout


def test_a_full_disk_leaves_nothing_that_looks_whole(tmp_path):
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    wanted = {"big": some_bytes(300_000), "small": b"small"}
    for name, value in wanted.items():
        (source / name).write_bytes(value)
    line = on_a_full_disk(f"storage.stage('file://{source}', '{cache}', 20)")
    assert line.startswith(f"no space left for {cache}/source-")
    no_file_looks_whole(cache, wanted)
    assert content(storage.stage(f"file://{source}", cache, LIMIT_S)) == wanted


def test_a_disk_that_is_too_small_is_known_before_anything_is_fetched(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(some_bytes(3000))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(5000, 2001, 2999))
    line = error_of(f"file://{tmp_path}/source", tmp_path / "cache", LIMIT_S)
    assert line.startswith(f"no space left for {tmp_path}/cache/source-")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    line = error_of(f"file://{tmp_path}", tmp_path / "file" / "cache", LIMIT_S)
    assert "choose another folder" in line and str(tmp_path / "file" / "cache") in line


def test_another_run_that_never_ends_staging_is_not_waited_for_without_limit(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x").touch()
    url, cache = f"file://{tmp_path}/source", tmp_path / "cache"
    storage.stage(url, cache, LIMIT_S)
    (lock,) = cache.glob("*.lock")
    said = []
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another run" in error_of(url, cache, 0.5, said.append)
    assert said == [f"another run is staging {url}: waiting for it"]
    storage.stage(url, cache, LIMIT_S)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path):
    """A finished run's folder."""
    folder = tmp_path / "runs" / "2026-ddp-2"
    (folder / "trace").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("record.json", "rank0.log", "trace/rank0.json", "zz.txt", ".rank0.status", "a.tmp", ".hidden/x"):
        (folder / name).write_text(name)
    return folder


RESULTS = {name: name.encode() for name in ("record.json", "rank0.log", "trace/rank0.json", "zz.txt")}


@needs_s3
def test_results_are_copied_with_the_record_last(bucket, run_dir):
    url = storage.copy_back(run_dir, bucket.url("results") + "/", LIMIT_S)
    assert url == bucket.url("results/2026-ddp-2")
    assert bucket.objects() == {f"results/2026-ddp-2/{name}": value for name, value in RESULTS.items()}
    puts = [r.path for r in bucket.server.requests if r.method == "PUT"]
    assert len(puts) == 4 and puts[-1].endswith("/record.json")
    assert content(storage.stage(url, run_dir.parent / "cache", LIMIT_S)) == RESULTS


def test_results_are_copied_to_a_folder(run_dir, tmp_path):
    url = storage.copy_back(run_dir, f"file://{tmp_path}/there", LIMIT_S)
    assert url == f"file://{tmp_path}/there/2026-ddp-2"
    assert content(tmp_path / "there" / "2026-ddp-2") == RESULTS
    storage.copy_back(run_dir, f"file://{tmp_path}/there", LIMIT_S)  # once more does no harm
    assert content(tmp_path / "there" / "2026-ddp-2") == RESULTS


@needs_s3
def test_results_that_cannot_all_be_copied_have_no_record(bucket, run_dir):
    before = content(run_dir)
    bucket.server.fault = lambda r: (403, b"") if r.method == "PUT" and r.path.endswith("zz.txt") else None
    line = error_of(run_dir, bucket.url(), LIMIT_S, function=storage.copy_back)
    assert line.startswith(f"{bucket.url('2026-ddp-2')}: writing zz.txt: ")
    assert "2026-ddp-2/record.json" not in bucket.objects()
    assert content(run_dir) == before
    failures = []
    bucket.server.fault = lambda r: failures.append(r) or (503, b"") if len(failures) < 2 else None
    storage.copy_back(run_dir, bucket.url(), LIMIT_S)
    assert len(bucket.objects()) == 4


def test_results_for_a_full_disk_have_no_record(run_dir, tmp_path):
    (run_dir / "record.json").write_bytes(some_bytes(300_000))
    line = on_a_full_disk(f"storage.copy_back('{run_dir}', 'file://{tmp_path}/there', 20)")
    assert "writing record.json" in line and "free some space there" in line
    assert not (tmp_path / "there" / run_dir.name / "record.json").exists()


@needs_s3
def test_results_for_a_bucket_that_does_not_exist(bucket, run_dir):
    line = error_of(run_dir, "s3://no-such-bucket", LIMIT_S, function=storage.copy_back)
    assert line.startswith("s3://no-such-bucket/2026-ddp-2: ") and "check the name of the bucket" in line
    assert "no-such-bucket" not in [b["Name"] for b in bucket.client.list_buckets()["Buckets"]]


def test_no_results(tmp_path):
    assert "holds no files" in error_of(tmp_path / "none", f"file://{tmp_path}/x", LIMIT_S, function=storage.copy_back)
