"""Limits of the control groups of this process, set by a container, a batch system or a person.

A group is limited by each of its parents too. In a container the path in /proc/self/cgroup may be the host's: then only
the root of what is mounted is readable. Versions 1 and 2 of the kernel's interface are read
(Documentation/admin-guide/cgroup-v1, cgroup-v2.rst).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bench.files import PROC

CGROUP = Path("/sys/fs/cgroup")
NO_LIMIT = 2**60  # bytes: version 1 reports "none" as the largest number of pages


def groups(controller: str, proc: Path = PROC, root: Path = CGROUP) -> Iterator[Path]:
    """The folders of the groups of this process and of their parents, as far as they exist."""
    for line in text_of(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)  # '0::/a/b' (version 2) or '3:cpu,cpuacct:/a/b' (version 1)
        if not controllers:
            roots = [root, root / "unified"]
        elif controller in controllers.split(","):
            roots = [root / controllers, root / controller]
        else:
            continue
        steps = Path(path.lstrip("/"))
        for each in roots:
            yield from (each / step for step in (steps, *steps.parents))


def memory_limit(proc: Path = PROC, root: Path = CGROUP) -> int | None:
    """Bytes for all processes of this group together; None without a limit."""
    limits = []
    for group in groups("memory", proc, root):
        text = (text_of(group / "memory.max") or text_of(group / "memory.limit_in_bytes")).strip()
        limits += [int(text)] if text.isdecimal() and int(text) < NO_LIMIT else []  # 'max': no limit
    return min(limits, default=None)


def oom_kills(proc: Path = PROC, root: Path = CGROUP) -> int:
    """How many processes of this group the kernel has killed because memory ran out."""
    for group in groups("memory", proc, root):
        text = text_of(group / "memory.events") or text_of(group / "memory.oom_control")
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return 0


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
