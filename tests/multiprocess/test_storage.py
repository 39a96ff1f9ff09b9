"""Real processes stage from a real S3 server: two at once, and one that is killed."""

import collections
import hashlib
import subprocess
import sys
import threading

from bench.storage import stage as storage
from tests.runs import ROOT, wait_for
from tests.s3 import needs_s3

pytestmark = needs_s3

CODE = "import sys; from bench.storage import stage; print(stage.stage(sys.argv[1], sys.argv[2], 60, print))"


def start_staging(url: str, cache) -> subprocess.Popen:
    """A process that stages; it prints the sentences, then the folder."""
    arguments = [sys.executable, "-u", "-W", "error", "-c", CODE, url, str(cache)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once_make_one_whole_copy(bucket, tmp_path):
    wanted = {f"class{n % 3}/{n}": hashlib.shake_256(bytes([n])).digest(1000) for n in range(40)}
    for name, value in wanted.items():
        bucket.put(f"set/{name}", value)
    bucket.server.requests.clear()
    both_have_begun = threading.Event()
    bucket.server.fault = lambda r: both_have_begun.wait(60) and None if r.is_read else None
    processes = [start_staging(bucket.url("set"), tmp_path) for _ in range(2)]
    first = "".join(process.stdout.readline() for process in processes)  # one fetches, the other waits for it
    both_have_begun.set()
    ends = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert [stderr for _, stderr in ends] == ["", ""]
    folders = {stdout.splitlines()[-1] for stdout, _ in ends}
    assert len(folders) == 1
    data = tmp_path / folders.pop()
    assert {p.relative_to(data).as_posix(): p.read_bytes() for p in data.rglob("*") if p.is_file()} == wanted
    fetched = collections.Counter(bucket.server.reads())
    assert len(fetched) == 40 and set(fetched.values()) == {1}
    said = first + "".join(stdout for stdout, _ in ends)
    assert said.count("another run is staging") == 1 and said.count("already") == 1


def test_a_process_that_was_killed_leaves_what_the_next_one_goes_on_from(bucket, tmp_path):
    big = hashlib.shake_256(b"big").digest(100_000)
    bucket.put("set/first", b"first")
    bucket.put_in_parts("set/big", big)
    bucket.server.requests.clear()
    killed = threading.Event()
    bucket.server.fault = lambda r: killed.wait(60) and (503, b"") if r.is_read and r.path.endswith("big") else None
    process = start_staging(bucket.url("set"), tmp_path)
    wait_for(lambda: bucket.server.reads("big") and journalled(tmp_path, "first"), "one file is there, one asked for")
    process.kill()
    process.communicate()
    killed.set()
    assert not list(tmp_path.rglob("manifest.json")) and not list(tmp_path.rglob("data/big"))

    bucket.server.fault = lambda r: None
    bucket.server.requests.clear()
    data = storage.stage(bucket.url("set"), tmp_path, 60)
    assert (data / "big").read_bytes() == big and (data / "first").read_bytes() == b"first"
    assert bucket.server.reads() == [f"/{bucket.name}/set/big"]


def journalled(cache, name: str) -> bool:
    """Whether a process that stages has noted a file as complete."""
    return any(f'"{name}"' in journal.read_text() for journal in cache.rglob("journal.jsonl"))
