"""Training scripts, each a whole program or another script with a difference of a few lines. tests/watched runs them.

``skeletons`` contains complete scripts, as a user could have written them, and ``cases`` files of cases. A case is a
line ``=== NAME < BASE: EXPECTATION`` (its words: tests/watched/script.py), a line that describes it, lines that begin
with SAYS or CANNOT, and its difference from BASE: another case, or a skeleton. Without ``< BASE`` it is the skeleton
with the file's name. Each line of a difference begins with

    -  remove the line
    ~  replace the line that has the same beginning, up to = or ( or the word for, return, …
    >  indent the line by four columns
       (a space) keep the line: it is the position for the next changes
    +  add the line after the last given one; without one, after the imports

A given line is the next one, or one further down that must occur exactly once. ``-…`` and ``>…`` mean all lines down to
the next given one.
"""

import difflib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HEAD = re.compile(r"=== (?P<name>\S+?)(?: < (?P<base>\S+?))?(?:: (?P<expectation>.+))?")
SHORT = 15  # lines of a difference
LAST_IMPORT = "from bench.observe import Watch"
BEGINNING = re.compile(r"\s*(?:for|return|with|if|yield)\b|[^=(]*(?= = |\()")


@dataclass(frozen=True)
class Case:
    """expectation: its words by keyword (FINDS, …); text: the whole script; base, base_text: what it differs from."""

    name: str
    about: str
    expectation: dict[str, str]
    text: str
    base: str
    base_text: str

    def difference(self) -> list[str]:
        """In the format of `diff -u`, with one line of context unless that is too long."""
        old, new = self.base_text.splitlines(), self.text.splitlines()
        for around in (1, 0):
            lines = [line.rstrip() for line in difflib.unified_diff(old, new, lineterm="", n=around)][3:]
            lines = ["…" if line.startswith("@@") else line for line in lines if around or not line.startswith("@@")]
            if len(lines) <= SHORT:
                break
        return lines


def read(only: str = "") -> dict[str, Case]:
    """All cases by name, or one with its bases.

    Raises ValueError for a line that does not occur exactly once, FileNotFoundError for a base that does not exist.
    """
    written = {}
    for path in sorted((HERE / "cases").glob("*.diff")):
        lines = path.read_text().splitlines()
        heads = [number for number, line in enumerate(lines) if line.startswith("=== ")] + [len(lines)]
        for begin, end in itertools.pairwise(heads):
            head = HEAD.fullmatch(lines[begin])
            if not head or head["name"] in written:
                raise ValueError(f"{path}:{begin + 1}: not a head, or a repeated name")
            written[head["name"]] = (head, head["base"] or path.stem, lines[begin + 1 : end])
    cases: dict[str, Case] = {}

    def text_of(name: str) -> str:
        if name not in written:
            return (HERE / "skeletons" / f"{name}.py").read_text()
        if name not in cases:
            head, base, (about, *changes) = written[name]
            said = [line for line in changes if line.startswith(("SAYS ", "CANNOT "))]
            said += head["expectation"].split("; ") if head["expectation"] else []
            expectation = dict(part.partition(" ")[::2] for part in said)
            changes = [line for line in changes if line not in said]
            cases[name] = Case(name, about, expectation, change(text_of(base), changes, name), base, text_of(base))
        return cases[name].text

    for name in written.keys() & {only} if only else written:
        text_of(name)
    return cases


def change(text: str, changes: list[str], name: str) -> str:
    """Apply a difference."""
    old, new, on_top, at, begun, between = text.splitlines(), [], [], 0, False, " "
    for line in changes:
        sign, line = line[:1], line[1:]
        if sign == "+":
            (new if begun else on_top).append(line)
        elif line == "…":
            between = sign
        if sign in ("", "+") or line == "…":
            continue
        place = at if old[at : at + 1] == [line] else find(old, line, beginning if sign == "~" else str, name)
        if place < at:
            raise ValueError(f"{name}: the line {line!r} is further up")
        for each, kept in [*((between, kept) for kept in old[at:place]), (sign, line)]:
            new += {"-": [], " ": [kept], "~": [kept], ">": [f"    {kept}"]}[each]
        at, begun, between = place + 1, True, " "
    new += old[at:]
    if on_top:
        new.insert(new.index(LAST_IMPORT) + 1, "\n".join(["", *on_top]))
    return "\n".join(new) + "\n"


def find(lines: list[str], line: str, key: Callable, name: str) -> int:
    found = [number for number, each in enumerate(lines) if key(each) == key(line)]
    if len(found) != 1:
        raise ValueError(f"{name}: the line {line!r} must occur exactly once, but occurs {len(found)} times")
    return found[0]


def beginning(line: str) -> str:
    found = BEGINNING.match(line)
    return found[0] if found else line
