"""One training script in four forms (tutorials/scripts), as the changes from one form to the next: for the manual."""

import difflib
import re
from pathlib import Path

from bench.files import PROJECT
from bench.report import markdown

FOLDER = PROJECT / "tutorials" / "scripts"
STEPS = (("single.py", "dp.py"), ("single.py", "ddp.py"), ("ddp.py", "hvd.py"))
AROUND = 2  # unchanged lines around a change
BEGIN = "imports"  # the part before the first heading
HEADING = re.compile(r"\s*# ([a-z][A-Za-z ]+)")


def text() -> str:
    parts = [dict(changes(*step)) for step in STEPS]
    names = list(dict.fromkeys(name for found in sorted(parts, key=len, reverse=True) for name in found))
    rows = [[name, *(found.get(name, "") for found in parts)] for name in names]
    head = [("part of the script", False), *((f"`{a}` → `{b}`", True) for a, b in STEPS)]
    said = ["Lines that are new (+) and lines that go (−):\n\n" + markdown.table(head, rows)]
    for a, b in STEPS:
        said.append(f"## `{a}` → `{b}`\n\n```diff\n" + "\n".join(diff(a, b)) + "\n```\n")
    return "\n".join(said)


def lines_of(name: str) -> list[str]:
    return Path(FOLDER / name).read_text().splitlines()


def diff(a: str, b: str) -> list[str]:
    return list(difflib.unified_diff(lines_of(a), lines_of(b), n=AROUND, lineterm=""))[2:]


def changes(a: str, b: str) -> list[tuple[str, str]]:
    """(part, how many lines change there) of two scripts, in order."""
    counts, part = {}, BEGIN
    for line in difflib.ndiff(lines_of(a), lines_of(b)):
        if line[0] in " +" and (found := HEADING.fullmatch(line[2:])):
            part = found[1]
        new, gone = counts.get(part, (0, 0))
        filled = bool(line[2:].strip())
        counts[part] = new + (filled and line[0] == "+"), gone + (filled and line[0] == "-")
    return [(part, f"+{new} −{gone}") for part, (new, gone) in counts.items() if new or gone]
