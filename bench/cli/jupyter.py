"""`bench jupyter`: JupyterLab in the folder of the chapters, until it is stopped."""

import os
import subprocess
import sys

from bench.course import chapters
from bench.course.shell import own_paths
from bench.files import PROJECT


def run(args) -> int:
    """Start it; its own exit code."""
    words = words_of(args)
    chapters.required("jupyterlab")
    # No tree: what somebody has started with nohup in one of its terminals is meant to stay.
    return subprocess.run(words, env={**os.environ, **own_paths()}).returncode


def words_of(args) -> list[str]:
    """JupyterLab's command. What stands after -- is its own."""
    words = [sys.executable, "-m", "jupyterlab", "--notebook-dir", str(PROJECT / "tutorials")]
    words += [f"--port={args.port}"] if args.port else []
    words += [f"--ip={args.ip}"] if args.ip else []
    words += ["--no-browser"] if args.browser is False else []
    return words + args.rest
