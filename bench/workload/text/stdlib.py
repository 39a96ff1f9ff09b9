"""DATA=stdlib: the sources of Python's standard library, real text on every machine.

The files and their order are fixed here, so the same version of Python has the same bytes; the record has their hash.
"""

import sysconfig
from pathlib import Path

import torch

from bench.config.options import RunConfig
from bench.errors import UserError

TRAIN = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "configparser", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "difflib", "dis", "doctest", "fractions", "ftplib", "functools", "gettext", "heapq", "imaplib",
    "inspect", "ipaddress", "locale", "mailbox", "mimetypes", "ntpath", "optparse", "os", "pathlib", "pdb", "pickle",
    "pickletools", "platform", "plistlib", "pprint", "random", "shutil", "smtplib", "socket", "statistics",
)  # fmt: skip
VALIDATION = ("subprocess", "tarfile", "zipfile")  # held out, always the same


def load(config: RunConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The training bytes and the validation bytes: [n] uint8 each. Raises UserError if a file is missing."""
    return tuple(read(names) for names in (TRAIN, VALIDATION))


def read(names: tuple[str, ...]) -> torch.Tensor:
    """The modules' files in this order; a package's files by name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for name in names:
        alone, package = folder / f"{name}.py", folder / name
        files += [alone] if alone.is_file() else sorted(package.glob("*.py"))
        if not files or name not in str(files[-1]):
            raise UserError(f"DATA=stdlib: {alone} does not exist: use a Python with the sources of its library")
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
