"""`bench jupyter`: JupyterLab in the folder of the chapters, until it is stopped."""

import os
import subprocess
import sys

from bench.course import chapters
from bench.course.shell import own_paths
from bench.files import PROJECT


def run(args) -> int:
    """Start it; its own exit code."""
    chapters.required("jupyterlab")
    words = [sys.executable, "-m", "jupyterlab", "--notebook-dir", str(PROJECT / "tutorials")]
    return subprocess.run(words, env={**os.environ, **own_paths()}).returncode
