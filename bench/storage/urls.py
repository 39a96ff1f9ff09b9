"""URLs as they may be printed: without user, password and signature."""

import re


def without_user(text: str) -> str:
    """Without the user:password@ of a text's URLs."""
    return re.sub(r"://\S*@", "://", text)  # to the last @: a secret may hold a slash


def without_credentials(url: str) -> str:
    """Also without the query, which may be a signature."""
    return re.sub(r"(?<![:/])/+$", "", without_user(url).partition("?")[0])
