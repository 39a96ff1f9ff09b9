"""A storage that answers falsely, over http and as S3: the copy is what was stored there, or there is none and one line
says why, within the limit."""

import http.server
import importlib.util
import os
import threading
import time

import pytest

from bench.storage import stage as storage
from tests.s3 import needs_s3
from tests.unit.storage.test_storage import content, error_of, no_file_looks_whole, reading, some_bytes

needs_http = pytest.mark.skipif(
    importlib.util.find_spec("aiohttp") is None and os.environ.get("CI") != "true",
    reason="aiohttp is not installed (the extra data); with CI=true this is a failure",
)
LIMIT_S = 60
SOON_S = 6
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
        """An answer; ``length``: what it says of its own."""
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
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    server.daemon_threads, server.handle_error = True, lambda *_: None
    server.lies, server.names, server.ended = {}, ["a"], threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}/set"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


def only_read(lie):
    """A lie told when the bytes are asked for, and not before."""

    def answer(handler):
        lie(handler) if handler.command == "GET" else handler.send(BODY)

    return answer


def cut(handler):
    """Half of the bytes, and the connection is closed."""
    handler.send(BODY[:1500], length=len(BODY))
    handler.close_connection = True


def round_and_round(handler):
    """A redirection to itself."""
    handler.send(b"", {"Location": handler.path}, status=302)


def drop_by_drop(handler):
    """A byte now and then: never silent for long, and never done."""
    handler.send(b"", length=len(BODY))
    while not handler.server.ended.wait(0.2):
        handler.wfile.write(b"x")


def growing(handler):
    """Another size each time that it is asked."""
    handler.server.grown = getattr(handler.server, "grown", 0) + 1
    handler.send(BODY + b"x" * handler.server.grown)


@needs_http
def test_a_true_answer_by_http(web, tmp_path):
    assert content(storage.stage(web.url, tmp_path / "page", LIMIT_S)) == {"a": BODY}
    assert content(storage.stage(f"{web.url}/a", tmp_path / "file", LIMIT_S)) == {"a": BODY}


@needs_http
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
    started = time.monotonic()
    line = error_of(f"{web.url}/a", tmp_path, LIMIT_S)
    assert line.startswith(f"{web.url}/a: ") and "not done within" not in line and time.monotonic() - started < LIMIT_S
    no_file_looks_whole(tmp_path, {})


@needs_http
@pytest.mark.parametrize("lie", [drop_by_drop, only_read(drop_by_drop)], ids=["at once", "in the bytes"])
def test_bytes_that_come_one_by_one_end_within_the_limit(web, tmp_path, lie):
    web.lies["/set/a"] = lie
    started = time.monotonic()
    assert f"not done within the limit of {SOON_S} s" in error_of(f"{web.url}/a", tmp_path, SOON_S)
    assert time.monotonic() - started < SOON_S + 20
    no_file_looks_whole(tmp_path, {})


@needs_http
def test_a_listing_without_end_ends_within_the_limit(web, tmp_path):
    web.names = ["a", "deeper/"]  # and in each of them the same again
    started = time.monotonic()
    error_of(web.url, tmp_path, SOON_S)
    assert time.monotonic() - started < SOON_S + 20
    no_file_looks_whole(tmp_path, {})


LISTING = """<?xml version="1.0"?><ListBucketResult><Name>BUCKET</Name><Prefix>set</Prefix><KeyCount>1</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>MORE</IsTruncated><NextContinuationToken>again</NextContinuationToken>
<Contents><Key>set/KEY</Key><Size>SIZE</Size><ETag>"ETAG"</ETag><LastModified>2026-01-01T00:00:00Z</LastModified>
</Contents></ListBucketResult>"""


def listing(bucket, **words):
    """A fault: a listing with these words in it, whatever is stored."""
    text = LISTING
    for name, word in ({"BUCKET": bucket.name, "MORE": "false", "KEY": "a", "SIZE": 3, "ETAG": "x"} | words).items():
        text = text.replace(name, str(word))
    return lambda request: (200, text.encode()) if "list-type" in request.query else None


@needs_s3
@pytest.mark.parametrize(
    "words",
    [{"SIZE": 2}, {"SIZE": 4}, {"SIZE": 0}, {"SIZE": -3}, {"SIZE": 10**18}, {"KEY": "b"}, {"SIZE": "x"}],
    ids=str,
)
def test_a_listing_that_lies(bucket, tmp_path, words):
    bucket.put("set/a", b"aaa")
    bucket.server.fault = listing(bucket, **words)
    started = time.monotonic()
    line = error_of(bucket.url("set"), tmp_path, LIMIT_S)
    assert bucket.url("set") in line or "no space left" in line
    assert time.monotonic() - started < LIMIT_S
    no_file_looks_whole(tmp_path, {})


@needs_s3
def test_a_listing_that_always_has_more_ends_within_the_limit(bucket, tmp_path):
    bucket.put("set/a", b"aaa")
    bucket.server.fault = listing(bucket, MORE="true")
    started = time.monotonic()
    error_of(bucket.url("set"), tmp_path, SOON_S)
    assert time.monotonic() - started < SOON_S + 20


@needs_s3
@pytest.mark.parametrize("body", [b"", b"a", b"aaaa", b"<html>", b"aab"], ids=str)
def test_an_object_that_is_another_one_than_was_listed(bucket, tmp_path, body):
    bucket.put("set/a", b"aaa")
    bucket.server.fault = lambda request: (200, body) if reading(request) else None
    line = error_of(bucket.url("set"), tmp_path, LIMIT_S)
    assert line.startswith(bucket.url("set"))
    no_file_looks_whole(tmp_path, {})


@needs_s3
def test_an_answer_that_is_no_listing(bucket, tmp_path):
    bucket.server.fault = lambda request: (200, b"<html>log in first</html>") if "list-type" in request.query else None
    assert error_of(bucket.url("set"), tmp_path, LIMIT_S).startswith(bucket.url("set"))
