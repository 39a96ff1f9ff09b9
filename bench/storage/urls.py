"""URLs as they may be printed: without user, password and signature."""

import re


def without_user(text: str) -> str:
    """A text without the user:password@ of its URLs.

    >>> without_user("sftp://me:secret@host/data")
    'sftp://host/data'
    """
    return re.sub(r"://[^/\s]*@", "://", text)


def without_credentials(url: str) -> str:
    """A URL as it may be printed: without user, password, and the query, which may be a signature."""
    return re.sub(r"(?<![:/])/+$", "", without_user(url).partition("?")[0])
