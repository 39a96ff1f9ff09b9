"""A real S3 server on this machine (moto), which remembers its requests and can be made to fail."""

import functools
import hashlib
import importlib.util
import logging
import os
import threading
from dataclasses import dataclass

import pytest

# With CI=true what is missing is not skipped over: the test runs, and fails.
needs_s3 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("s3fs", "moto", "boto3"))) and os.environ.get("CI") != "true",
    reason="s3fs or moto is not installed (the extras data and dev); with CI=true this is a failure",
)

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIA-the-access-key",
    "AWS_SECRET_ACCESS_KEY": "the-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Request:
    """One that the server has received."""

    method: str
    path: str  # /bucket/key
    query: str

    @property
    def is_read(self) -> bool:
        return self.method == "GET" and "list-type" not in self.query


class Server:
    """The server, and a test's fault: ``fault(request)`` returns (status, body) to answer with, or None."""

    def __init__(self):
        import boto3
        from botocore import loaders
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").disabled = True
        once = loaders.JSONFileLoader()
        once.load_file = functools.cache(once.load_file)  # each client would read botocore's megabytes of tables again
        loaders.Loader.FILE_LOADER_CLASS = lambda _: once
        self.app = DomainDispatcherApplication(create_backend_app)
        self.requests, self.fault = [], lambda request: None
        self.server = make_server("127.0.0.1", 0, self.answer, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        keys = {name.lower(): KEYS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys)

    def answer(self, environ, start_response):
        request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
        self.requests.append(request)
        answer = self.fault(request)
        if answer:
            status, body = answer
            start_response(f"{status} Fault", [("Content-Length", str(len(body)))])
            return [body]
        return self.app(environ, start_response)

    def reads(self, key: str = "") -> list[str]:
        """The paths ending so of which the bytes were asked for, in order."""
        return [r.path for r in self.requests if r.is_read and r.path.endswith(key)]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Bucket:
    """A bucket with its own name on a server, filled and read by boto3."""

    def __init__(self, server: Server, name: str):
        self.server, self.name, self.client = server, name, server.client
        self.client.create_bucket(Bucket=name)

    def put(self, key: str, content: bytes, **options) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content, **options)

    def put_in_parts(self, key: str, content: bytes) -> None:
        """Store an object the way big ones are: its ETag is not an MD5."""
        target = {"Bucket": self.name, "Key": key}
        upload = target | {"UploadId": self.client.create_multipart_upload(**target)["UploadId"]}
        tag = self.client.upload_part(**upload, PartNumber=1, Body=content)["ETag"]
        self.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})

    def objects(self) -> dict[str, bytes]:
        listing = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return {o["Key"]: self.client.get_object(Bucket=self.name, Key=o["Key"])["Body"].read() for o in listing}

    def url(self, prefix: str = "") -> str:
        return f"s3://{self.name}/{prefix}".rstrip("/")


@pytest.fixture(scope="module")
def s3_server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def bucket(s3_server, request, monkeypatch):
    """A bucket of the test's own, which the environment finds. Its server forgets its faults and requests."""
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": s3_server.url}).items():
        monkeypatch.setenv(name, value)
    s3_server.fault = lambda request: None
    bucket = Bucket(s3_server, hashlib.sha256(request.node.name.encode()).hexdigest()[:32])
    s3_server.requests.clear()
    return bucket
