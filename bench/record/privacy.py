"""Removes from a record what names the machine or its owner."""

import dataclasses
import re
from pathlib import Path

from bench.config import own
from bench.config.data_sets import OWN, data_kind
from bench.config.options import FIELDS, RunConfig
from bench.files import PROJECT
from bench.storage.urls import without_credentials


def short_path(file: str) -> str:
    """A path from the project, from the installed packages, or its last two parts.

    >>> short_path(f"{PROJECT}/bench/worker.py"), short_path("/home/jane/thesis/train.py")
    ('bench/worker.py', 'thesis/train.py')
    >>> short_path("/home/jane/venv/lib/python3.11/site-packages/torch/_tensor.py")
    'site-packages/torch/_tensor.py'
    """
    path = Path(file)
    installed = [i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")]
    if installed:
        return "/".join(path.parts[installed[-1] :])
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else "/".join(path.parts[-2:])


def without_paths(text: str) -> str:
    """A text whose absolute paths are shortened, as ``short_path`` does it.

    >>> without_paths("FileNotFoundError: '/home/jane/a/b.png', see s3://bucket/a/b")
    "FileNotFoundError: 'a/b.png', see s3://bucket/a/b"
    >>> without_paths("no ~jane/data, and no ~/data")
    'no ~/data, and no ~/data'
    """
    text = re.sub(r"(?<![\w/])~[\w.-]+/", "~/", text)
    return re.sub(r"(?<![\w:/.~])/[^\s'\",:;()]+/[^\s'\",:;()]+", lambda found: short_path(found[0]), text)


def without_names(config: RunConfig) -> RunConfig:
    """A config with paths below the working folder as they are, only the last name of others, and without REMOTE."""
    kind, place = data_kind(config.data)
    paths = [name for name, f in FIELDS.items() if f.metadata["path"]]
    changes = {name: nameless(getattr(config, name)) for name in paths if getattr(config, name)}
    if place:
        changes["data"] = nameless(place) if kind in ("url", OWN) else f"{kind}:{nameless(place)}"
    if own.named(config.model or ""):
        prefix = own.KERAS if config.model.startswith(own.KERAS) else ""
        changes["model"] = prefix + nameless(config.model.removeprefix(prefix))
    return dataclasses.replace(config, remote=None, **changes)


def nameless(path: str) -> str:
    """A path below the working folder, as it is from there; of others the last name; a URL without credentials.

    >>> nameless("/somewhere/else/flowers"), nameless("~/.cache/data")
    ('flowers', '~/.cache/data')
    >>> nameless("s3://KEY:SECRET@bucket/flowers"), nameless("file:///home/jane/flowers")
    ('s3://bucket/flowers', 'file:///flowers')
    """
    if "://" in path:
        url = without_credentials(path)
        return f"file:///{Path(url).name}" if url.startswith("file:") else url
    if path.startswith("~"):
        return re.sub(r"^~[^/]+", "~", path)
    whole = Path(path).resolve()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else whole.name
