"""The files below one URL, through fsspec: listed, read and written within a limit, and in one line when it cannot be.

Endpoint and keys of S3 come from the ordinary AWS_* variables, which s3fs reads; no credential is printed or written.
"""

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
# botocore tries a request that did not get through again, s3fs a stream that broke off from where it stopped.
S3_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 20,  # seconds without one byte
    "retries": {"total_max_attempts": 4, "mode": "standard"},
    "max_pool_connections": THREADS,
}
STREAM_TRIES = 5
S3_OPTIONS, LOCAL_OPTIONS = {"config_kwargs": S3_CONFIG, "max_concurrency": 1}, {"auto_mkdir": True}
OPTIONS = {"s3": S3_OPTIONS, "s3a": S3_OPTIONS, "file": LOCAL_OPTIONS, "local": LOCAL_OPTIONS}
VERSION_KEYS = ("ETag", "etag", "md5Hash", "LastModified", "updated", "mtime", "created")
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class RemoteFile:
    """A file as the storage lists it."""

    path: str  # in the storage
    size: int  # bytes
    version: str  # empty where the storage tells none
    md5: str | None  # what S3 gives as the ETag of a file that was written at once


class Remote:
    """The files below one URL. Every request ends within the time limit and raises nothing but UserError.

    A folder's (file://) requests are the operating system's, which has its own limits: ours is looked at between them.
    """

    def __init__(self, url: str, limit_s: float):
        self.url, self.limit_s = without_credentials(url), limit_s
        self.deadline = time.monotonic() + limit_s
        self.stop = threading.Event()  # one thread has failed: the others need not go on
        protocol = url.partition("://")[0].lower()
        if protocol in ("s3", "s3a", "obs", "gs", "gcs") and re.search(r"://[^@]*:\S*@", url):
            raise UserError(f"{protocol}:// takes no user and password in the address: set AWS_ACCESS_KEY_ID and "
                            "AWS_SECRET_ACCESS_KEY (or the storage's own variables)")  # fmt: skip
        if protocol == "obs":
            if not os.environ.get("AWS_ENDPOINT_URL"):
                raise UserError(f"{self.url} is read over S3: set AWS_ENDPOINT_URL, for Huawei's cloud "
                                "https://obs.REGION.myhuaweicloud.com")  # fmt: skip
            protocol, url = "s3", "s3" + url[len("obs") :]
        self.is_s3, self.is_local = protocol in ("s3", "s3a"), protocol in ("file", "local")
        self.check = f"{'AWS_ENDPOINT_URL, the credentials' if self.is_s3 else 'the address'} and the network"
        try:
            import fsspec  # not for runs whose data lie on this machine

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

    def left_s(self) -> float:
        """Seconds until the time limit. Raises UserError when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.over()
        return left

    def over(self) -> UserError:
        return UserError(
            f"{self.url}: not done within the limit of {self.limit_s:g} s; what was copied is kept: "
            f"run again, allow more time, or check {self.check}"
        )

    def call(self, what: str, method, *arguments, **options):
        """A request's answer. What goes wrong is a UserError in one line, and so is the end of the time limit.

        Raises OSError where this machine's disk is full.
        """
        left = self.left_s()
        if self.stop.is_set():
            raise UserError(f"{self.url}: stopped")
        try:
            return method(*arguments, **options, **({"timeout": left} if self.fs.async_impl else {}))
        except Exception as error:
            if method == self.fs.get_file and getattr(error, "errno", None) in NO_SPACE:
                raise  # it is this machine's disk
            if time.monotonic() >= self.deadline:  # cut off by us, perhaps while all went well
                raise self.over() from None
            raise UserError(f"{self.url}: {what}: {one_line(error)}; {self.advice(error)}") from None

    def advice(self, error: Exception) -> str:
        """What to do about an error that did not pass."""
        if isinstance(error, FileNotFoundError):
            return "check the name of the bucket and the folder"
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return "free some space there"
        if self.is_s3:
            return (
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, what the key may do there, and "
                "the network"
            )
        return "check the address, the permissions and the network"

    def files(self) -> dict[str, RemoteFile]:
        """Everything below the URL: relative path -> file. Raises UserError when a path has no place in a folder."""
        self.fs.invalidate_cache()
        walks = not self.fs.async_impl or "http" in self.fs.protocol
        strict = {"on_error": "raise"} if walks else {}  # a walk leaves out unsaid what it cannot list
        found = self.call("listing", self.fs.find, self.root, detail=True, **strict)
        root = self.root.rstrip("/")
        files = {}
        for path, info in found.items():
            if path.endswith("/"):  # the empty object that represents a folder
                continue
            name = path.rpartition("/")[2] if path == root else path[len(root) + 1 :]
            if info.get("size") is None:  # a page of links tells no sizes
                info = self.call(f"looking at {path}", self.fs.info, path)
            size, version = info.get("size"), version_of(info)
            if type(size) is not int or size < 0:
                raise UserError(f"{self.url}: the storage does not tell the size of {name}: copy it by other means")
            md5 = version if self.is_s3 and re.fullmatch(r"[0-9a-f]{32}", version) else None
            files[name] = RemoteFile(path, size, version, md5)
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
        for name in files:
            if name in folders or {"", ".", ".."} & set(name.split("/")) or "\0" in name:
                raise UserError(f"{self.url}: {name!r} cannot be a file in a folder: rename it in the storage")
        if not files:
            raise UserError(f"{self.url}: nothing is stored there; check the name of the bucket and the folder")
        return files

    def fetch(self, file: RemoteFile, to: Path) -> None:
        """Copy a file to ``to``. Raises UserError when it is not the one that was listed, or its bytes are not."""
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
            f"{self.url}: {file.path} arrived twice with another MD5 than its ETag says: store it there anew"
        )

    def check_unchanged(self, file: RemoteFile) -> None:
        """Raise UserError when a file is no longer the one that was listed."""
        self.fs.invalidate_cache()
        info = self.call(f"looking at {file.path}", self.fs.info, file.path)
        if (info["size"], version_of(info)) != (file.size, file.version):
            raise self.changed(file)

    def etag_is_md5(self, file: RemoteFile) -> bool:
        """Whether the ETag, which looks like an MD5, is one. It is not for a file encrypted with a key of KMS or of the
        user, nor in a directory bucket (S3's API reference, Object, ETag). Raises UserError when the file has changed.
        """
        bucket, _, key = file.path.partition("/")
        head = self.call(f"looking at {file.path}", self.fs.call_s3, "head_object", Bucket=bucket, Key=key)
        if version_of(head) != file.version:
            raise self.changed(file)
        encrypted = head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head
        return not encrypted and not bucket.endswith("--x-s3")

    def changed(self, file: RemoteFile) -> UserError:
        """The error for a file that is replaced while it is fetched."""
        return UserError(f"{self.url}: {file.path} changed while it was fetched: run again when nothing writes there")

    def write(self, source: Path, name: str) -> None:
        """Store a local file under a relative path, whole or not at all."""
        what, target = f"writing {name}", f"{self.root}/{name}"
        if not self.is_local:  # an object appears when all of it has arrived
            self.call(what, self.fs.put_file, str(source), target)
            return
        self.call(what, self.fs.put_file, str(source), f"{target}.part")
        self.call(what, files.synchronise, f"{target}.part")
        self.call(what, self.fs.mv, f"{target}.part", target)


def version_of(info: dict) -> str:
    """What a storage calls the state of a file, from its listing; empty where it tells nothing."""
    return next((str(info[key]).strip('"') for key in VERSION_KEYS if info.get(key)), "")


def one_line(error: Exception) -> str:
    """What an error says, in one line, without a credential."""
    text = " ".join(str(error).split())
    for value in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(value, "…")
    kind = "" if text and isinstance(error, OSError) else f"{type(error).__name__}: "
    return f"{kind}{without_user(text)}"[:250]
