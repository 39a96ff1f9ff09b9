"""A storage that answers falsely, over http and as S3: the copy is what was stored there, or there is none and one line
says why, within the limit."""

import http.server
import threading

import pytest

from bench.storage import stage as storage
from tests.s3 import needs_s3
from tests.unit.storage.test_storage import LIMIT_S, content, error_of, no_file_looks_whole, reading, some_bytes

pytestmark = needs_s3  # which has what http needs
SOON_S = 3
BODY = some_bytes(3000, "http")


class Liar(http.server.BaseHTTPRequestHandler):
    """A page of links, /set, and files. How it answers is in ``server.lies``, by path; otherwise it is honest."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        lie = self.server.lies.get(self.path)
        if self.path in ("/set", "/set/") or self.path.rstrip("/").endswith("/deeper"):
            links = "".join(f'<a href="{self.path.rstrip("/")}/{name}">{name}</a>' for name in self.server.names)
            self.send(f"<html>{links}</html>".encode(), {"Content-Type": "text/html"})
        elif lie:
            lie(self)
        elif self.path == "/set/a":
            self.send(BODY)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def send(self, body: bytes, headers: dict | None = None, length: int | None = None, status: int = 200):
        """An answer; ``length``: the length that it declares."""
        self.send_response(status)
        for name, value in {"Content-Length": len(body) if length is None else length, **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def web():
    """The server; its address is ``web.url``."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        server.daemon_threads, server.handle_error = True, lambda *_: None
        server.lies, server.names, server.ended = {}, ["a"], threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}/set"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.ended.set()
        server.shutdown()


def only_read(lie):
    def answer(handler):
        lie(handler) if handler.command == "GET" else handler.send(BODY)

    return answer


def cut(handler):
    handler.send(BODY[:1500], length=len(BODY))
    handler.close_connection = True


def round_and_round(handler):
    handler.send(b"", {"Location": handler.path}, status=302)


def drop_by_drop(handler):
    """A byte now and then: never silent for long, and never done."""
    handler.send(b"", length=len(BODY))
    while not handler.server.ended.wait(0.2):
        handler.wfile.write(b"x")


def growing(handler):
    handler.server.grown = getattr(handler.server, "grown", 0) + 1
    handler.send(BODY + b"x" * handler.server.grown)


def test_a_true_answer_by_http(web, tmp_path):
    assert content(storage.stage(web.url, tmp_path / "page", LIMIT_S)) == {"a": BODY}
    assert content(storage.stage(f"{web.url}/a", tmp_path / "file", LIMIT_S)) == {"a": BODY}


@pytest.mark.parametrize(
    "lie",
    [
        cut,
        lambda handler: handler.send(BODY[:1500]),
        lambda handler: handler.send(BODY + b"more"),
        lambda handler: handler.send(b""),
        lambda handler: handler.send(b"<html>log in first</html>", {"Content-Type": "text/html"}),
        lambda handler: handler.send(b"", status=204),
        lambda handler: handler.send(BODY, length=-5),
        lambda handler: handler.send(BODY, {"Content-Encoding": "gzip"}),
        round_and_round,
        growing,
    ],
    ids=["cut", "short", "long", "empty", "another page", "no content", "negative", "no gzip", "redirects", "growing"],
)
def test_bytes_that_are_not_those_that_were_announced(web, tmp_path, lie):
    web.lies["/set/a"] = only_read(lie)
    assert f"{web.url}/a" in error_of(f"{web.url}/a", tmp_path, LIMIT_S)
    no_file_looks_whole(tmp_path, {})


@pytest.mark.parametrize("lie", [drop_by_drop, only_read(drop_by_drop)], ids=["at once", "in the bytes"])
def test_bytes_that_come_one_by_one_end_within_the_limit(web, tmp_path, lie):
    web.lies["/set/a"] = lie
    assert f"{SOON_S} s" in error_of(f"{web.url}/a", tmp_path, SOON_S)
    no_file_looks_whole(tmp_path, {})


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_listing_without_end_ends_within_the_limit(web, bucket, tmp_path, kind):
    web.names = ["a", "deeper/"]  # and in each of them the same again
    bucket.put("set/a", b"aaa")
    bucket.server.fault = listing(MORE="true")
    error_of(web.url if kind == "http" else bucket.url("set"), tmp_path, SOON_S)
    no_file_looks_whole(tmp_path, {})


LISTING = """<?xml version="1.0"?><ListBucketResult><Name>b</Name><Prefix>set</Prefix><KeyCount>1</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>MORE</IsTruncated><NextContinuationToken>again</NextContinuationToken>
<Contents><Key>set/KEY</Key><Size>SIZE</Size><ETag>"ETAG"</ETag><LastModified>2026-01-01T00:00:00Z</LastModified>
</Contents></ListBucketResult>"""


def listing(**words):
    """A listing with these words in it, whatever is stored."""
    text = LISTING
    for name, word in ({"MORE": "false", "KEY": "a", "SIZE": 3, "ETAG": "x"} | words).items():
        text = text.replace(name, str(word))
    return lambda request: (200, text.encode()) if "list-type" in request.query else None


def bodies(*answers):
    """Answers to those who ask for the bytes; the last one stays."""
    left = [answer if answer is None or isinstance(answer, tuple) else (200, answer) for answer in answers]
    return lambda request: (left.pop(0) if len(left) > 1 else left[0]) if reading(request) else None


LIES = {
    "a size of 2": listing(SIZE=2),
    "a size of 4": listing(SIZE=4),
    "a size of 0": listing(SIZE=0),
    "a size below 0": listing(SIZE=-3),
    "a size of no disk": listing(SIZE=10**18),
    "a size that is no number": listing(SIZE="x"),
    "another file": listing(KEY="b"),
    "no listing": lambda request: (200, b"<html>log in first</html>") if "list-type" in request.query else None,
    "nothing": bodies(b""),
    "too little": bodies(b"a"),
    "too much": bodies(b"aaaa"),
    "other bytes": bodies(b"aab"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_s3(bucket, tmp_path, lie):
    bucket.put("set/a", b"aaa")
    bucket.server.fault = LIES[lie]
    line = error_of(bucket.url("set"), tmp_path, LIMIT_S)
    no_space = lie == "a size of no disk"  # known before anything is fetched
    assert (f"{tmp_path}/set-" if no_space else bucket.url("set")) in line
    assert not (no_space and bucket.server.reads())
    no_file_looks_whole(tmp_path, {})


def test_what_s3_is_forgiven(bucket, tmp_path):
    """The ETag of a file encrypted by KMS is not an MD5."""
    bucket.put("set/a", b"aaa")
    errors = [500, 504]
    faults = {"wrong bytes": bodies(b"aab", None), "errors": bodies((503, b""), (502, b""), None),
              "no listing": lambda r: (errors.pop(), b"") if "list-type" in r.query and errors else None}  # fmt: skip
    for name, fault in faults.items():
        bucket.server.fault = fault
        assert content(storage.stage(bucket.url("set"), tmp_path / name, LIMIT_S)) == {"a": b"aaa"}
    bucket.put("set/a", b"ENCRYPTED", ServerSideEncryption="aws:kms")  # moto's ETag hashes these bytes
    bucket.server.fault = bodies(b"plaintext")
    assert content(storage.stage(bucket.url("set"), tmp_path / "kms", LIMIT_S)) == {"a": b"plaintext"}
