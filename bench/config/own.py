"""A user's function as the value of an option: MODEL=FILE.py:FUNCTION or package.module:FUNCTION, which the processes
that train import (bench/workload/own_code.py)."""

import re

FORM = "FILE.py:FUNCTION"
KERAS = "keras:"  # prefix of a Keras model: keras:NAME, keras:FILE.py:FUNCTION


def named(text: str) -> tuple[str, str] | None:
    """(file or module, function) of a value; None for other values.

    >>> named("mine/net.py:build"), named("package.module:build"), named("tar:/data/x"), named("keras:ResNet50")
    (('mine/net.py', 'build'), ('package.module', 'build'), None, None)
    """
    found = re.fullmatch(r"(.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)+):([^\W\d]\w*)", text.removeprefix(KERAS))
    return (found[1], found[2]) if found else None


def is_file(text: str) -> bool:
    return text.endswith(".py")
