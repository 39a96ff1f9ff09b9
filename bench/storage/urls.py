"""URLs as they may be printed: without user, password and signature."""

import re


def without_user(text: str) -> str:
    """A text without the user:password@ of its URLs.

    >>> without_user("sftp://me:secret@host/data")
    'sftp://host/data'
    >>> without_user("s3://KEY:abc/SECRET+x@bucket/r")
    's3://bucket/r'
    """
    return re.sub(r"://\S*@", "://", text)  # to the last @: a secret may hold a slash


def without_credentials(url: str) -> str:
    """A URL as it may be printed: without user, password, and the query, which may be a signature."""
    return re.sub(r"(?<![:/])/+$", "", without_user(url).partition("?")[0])
