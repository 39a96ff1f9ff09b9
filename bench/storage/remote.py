"""The files below one URL, through fsspec: listed, read and written within a time limit. s3fs reads the AWS_*
variables; credentials are never printed or written."""

import errno
import hashlib
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench import files
from bench.errors import UserError
from bench.storage.urls import without_credentials, without_user

THREADS = 16  # files at once
# botocore retries a failed request, s3fs continues a broken stream.
S3_CONFIG = {"connect_timeout": 5, "read_timeout": 20, "max_pool_connections": THREADS,
             "retries": {"total_max_attempts": 4, "mode": "standard"}}  # fmt: skip
STREAM_TRIES = 5
S3_OPTIONS, LOCAL_OPTIONS = {"config_kwargs": S3_CONFIG, "max_concurrency": 1}, {"auto_mkdir": True}
OPTIONS = {"s3": S3_OPTIONS, "s3a": S3_OPTIONS, "file": LOCAL_OPTIONS, "local": LOCAL_OPTIONS}
VERSION_KEYS = ("ETag", "etag", "md5Hash", "LastModified", "updated", "mtime", "created")
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class RemoteFile:
    path: str  # in the storage
    size: int  # bytes
    version: str  # empty if the storage has none
    md5: str | None  # S3's ETag of a file written in one request


class Remote:
    """Every request ends within the time limit and raises only UserError. file:// checks it between requests."""

    def __init__(self, url: str, limit_s: float):
        self.url, self.limit_s = without_credentials(url), limit_s
        self.deadline = time.monotonic() + limit_s
        self.stop = threading.Event()  # one thread has failed, and the others can stop
        protocol = url.partition("://")[0].lower()
        if protocol in ("s3", "s3a", "obs", "gs", "gcs") and re.search(r"://[^@]*:\S*@", url):
            variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the storage's own variables)"
            raise UserError(f"{protocol}:// does not accept a user and password in the address: set {variables}")
        if protocol == "obs":
            if not os.environ.get("AWS_ENDPOINT_URL"):
                endpoint = "AWS_ENDPOINT_URL, for Huawei's cloud https://obs.REGION.myhuaweicloud.com"
                raise UserError(f"{self.url} needs an S3 endpoint: set {endpoint}")
            protocol, url = "s3", "s3" + url[len("obs") :]
        self.is_s3, self.is_local = protocol in ("s3", "s3a"), protocol in ("file", "local")
        self.check = f"{'AWS_ENDPOINT_URL, the credentials' if self.is_s3 else 'the address'} and the network"
        try:
            import fsspec  # not for runs with local data

            self.fs, self.root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **OPTIONS.get(protocol, {}))
        except ImportError as error:
            package = "fsspec" if error.name == "fsspec" else "s3fs" if self.is_s3 else None
            if package:
                raise UserError(f"{self.url} needs {package}: pip install 'data-parallel-bench[data]'") from None
            raise UserError(f"{self.url} needs a package that is not installed: {one_line(error)}") from None
        except Exception as error:
            raise UserError(f"{self.url} cannot be opened: {one_line(error)}; use s3://… or file://…") from None
        if self.is_s3:
            self.fs.retries = STREAM_TRIES

    def timeout_error(self) -> UserError:
        remedy = f"run again (finished files are kept), allow more time, or check {self.check}"
        return UserError(f"{self.url}: not finished within the limit of {self.limit_s:g} s: {remedy}")

    def call(self, what: str, method, *arguments, **options):
        """A request's answer. Raises UserError, also at the time limit; OSError if this machine's disk is full."""
        if (left := self.deadline - time.monotonic()) <= 0:
            raise self.timeout_error()
        if self.stop.is_set():
            raise UserError(f"{self.url}: stopped")
        try:
            return method(*arguments, **options, **({"timeout": left} if self.fs.async_impl else {}))
        except Exception as error:
            if method == self.fs.get_file and getattr(error, "errno", None) in NO_SPACE:
                raise  # it is this machine's disk
            if time.monotonic() >= self.deadline:  # interrupted by our limit, possibly without an error
                raise self.timeout_error() from None
            raise UserError(f"{self.url}: {what}: {one_line(error)}; {self.advice(error)}") from None

    def advice(self, error: Exception) -> str:
        if isinstance(error, FileNotFoundError):
            return "check the name of the bucket and the folder"
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return "free some space there"
        if self.is_s3:
            return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, the key's rights, and the network"
        return "check the address, the permissions and the network"

    def files(self) -> dict[str, RemoteFile]:
        """Relative path -> file. Raises UserError for a path that cannot be in a folder."""
        self.fs.invalidate_cache()
        walks = not self.fs.async_impl or "http" in self.fs.protocol
        strict = {"on_error": "raise"} if walks else {}  # by default a walk silently skips what it cannot list
        found = self.call("listing", self.fs.find, self.root, detail=True, **strict)
        root = self.root.rstrip("/")
        files = {}
        for path, info in found.items():
            if path.endswith("/"):  # the empty object that represents a folder
                continue
            name = path.rpartition("/")[2] if path == root else path[len(root) + 1 :]
            if info.get("size") is None:  # a page of links has no sizes
                info = self.call(f"looking at {path}", self.fs.info, path)
            size, version = info.get("size"), version_of(info)
            if type(size) is not int or size < 0:
                raise UserError(f"{self.url}: the storage does not report the size of {name}: copy it by other means")
            md5 = version if self.is_s3 and re.fullmatch(r"[0-9a-f]{32}", version) else None
            files[name] = RemoteFile(path, size, version, md5)
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
        for name in files:
            if name in folders or {"", ".", ".."} & set(name.split("/")) or "\0" in name:
                raise UserError(f"{self.url}: {name!r} cannot be a file in a folder: rename it in the storage")
        if not files:
            raise UserError(f"{self.url} is empty or does not exist: check the name of the bucket and the folder")
        return files

    def fetch(self, file: RemoteFile, to: Path) -> None:
        """Copy a file. Raises UserError if it changed since the listing, or its MD5 does not match."""
        for _ in range(2):
            self.call(f"reading {file.path}", self.fs.get_file, file.path, str(to))
            if to.stat().st_size != file.size:
                raise self.changed(file)
            if file.md5 is None:
                return self.check_unchanged(file)
            md5 = hashlib.md5(usedforsecurity=False)  # only compared with S3's, never trusted
            with to.open("rb") as content:
                while block := content.read(1 << 20):
                    md5.update(block)
            if md5.hexdigest() == file.md5 or not self.etag_is_md5(file):
                return None
        raise UserError(
            f"{self.url}: {file.path} was received twice with an MD5 that differs from its ETag: upload it again"
        )

    def check_unchanged(self, file: RemoteFile) -> None:
        """Raise UserError if a file has changed since the listing."""
        self.fs.invalidate_cache()
        info = self.call(f"looking at {file.path}", self.fs.info, file.path)
        if (info["size"], version_of(info)) != (file.size, file.version):
            raise self.changed(file)

    def etag_is_md5(self, file: RemoteFile) -> bool:
        """Whether the ETag is an MD5: not with KMS or customer keys, nor in a directory bucket (S3 API reference,
        Object, ETag). Raises UserError if the file has changed."""
        bucket, _, key = file.path.partition("/")
        head = self.call(f"looking at {file.path}", self.fs.call_s3, "head_object", Bucket=bucket, Key=key)
        if version_of(head) != file.version:
            raise self.changed(file)
        encrypted = head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head
        return not encrypted and not bucket.endswith("--x-s3")

    def changed(self, file: RemoteFile) -> UserError:
        return UserError(f"{self.url}: {file.path} changed during the download: run again when nothing writes to it")

    def write(self, source: Path, name: str) -> None:
        """Store a file completely or not at all."""
        what, target = f"writing {name}", f"{self.root}/{name}"
        if not self.is_local:  # an object appears only when complete
            self.call(what, self.fs.put_file, str(source), target)
            return
        self.call(what, self.fs.put_file, str(source), f"{target}.part")
        self.call(what, files.synchronise, f"{target}.part")
        self.call(what, self.fs.mv, f"{target}.part", target)


def version_of(info: dict) -> str:
    """The storage's version of a file; "" if it has none."""
    return next((str(info[key]).strip('"') for key in VERSION_KEYS if info.get(key)), "")


def one_line(error: Exception) -> str:
    """An error in one line, without credentials."""
    text = " ".join(str(error).split())
    for value in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(value, "…")
    kind = "" if text and isinstance(error, OSError) else f"{type(error).__name__}: "
    return f"{kind}{without_user(text)}"[:250]
