"""Every command line in the text and the shell blocks of the README, the manual, the chapters and the exercises is one
that `bench` takes. Those in code cells are executed (tests/notebooks, tests/exercises)."""

import contextlib
import functools
import io
import itertools
import re
import shlex

import pytest

from bench.__main__ import command_of
from bench.cli import COMMANDS
from bench.errors import BenchError
from bench.files import PROJECT

PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", PROJECT / "results" / "README.md"]
PAGES += sorted((PROJECT / "tutorials").rglob("*.md"))
OF_MAKE_ALONE = {"setup": (), "test": ("QUICK",), "lint": (), "clean": ()}
READ_BY_MAKE = ("VENV", "PYTHON", "TORCH")
BLOCK = re.compile(r"^( *)```+([\w{}-]*).*?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LAUNCHED = r"(?:srun|torchrun|mpirun|horovodrun|\S*python\S*)\b.*? (?:-m )?(?=bench )"
LINE = re.compile(rf"^\s*(?:[$!] ?|{LAUNCHED})?((?:make|bench) .*)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"…|\.\.\.|<.*>|\{.*\}|^[A-Z_]+$|^all$")  # GPUS=all: as many as this machine has


def command_lines(text: str) -> list[str]:
    """The lines of `make` and `bench` of a page: in blocks that are not Python, and in code within a sentence."""
    blocks = [code for _, language, code in BLOCK.findall(text) if not language.strip("{}").startswith(("py", "code"))]
    spans = [" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", text))]
    return [line for part in [*blocks, *spans] for line in LINE.findall(part.replace("\\\n", " "))]


def words_of(line: str) -> list[str]:
    """A line as a shell reads it, up to a comment, a pipe or the end of the command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    return [*itertools.takewhile(lambda word: word not in ("|", "&&", "||", ";", ">", "2>&1", "&"), lexer)]


def problem(line: str) -> str:
    """What `make` or `bench` would say of a line; empty if it would run it. A value such as … or N stands for one."""
    try:
        program, *words = words_of(line)
    except ValueError as error:
        return str(error)
    if not words or words[0].isupper() or words in ([name, "…"] for name in COMMANDS if COMMANDS[name].parts):
        return ""
    if program == "make":
        words = flags_of_make(words)
        name, *rest = words
        if name in OF_MAKE_ALONE:
            unknown = [word for word in rest if word.partition("=")[0][2:].upper() not in OF_MAKE_ALONE[name]]
            return f"make {name} takes no {unknown[0]}" if unknown else ""
    inner = [word.partition("=")[2] for word in words if word.startswith("--cmd=")]
    return next(filter(None, (problem(line) for line in inner if line.startswith(("make ", "bench ")))), parse(words))


def flags_of_make(words: list[str]) -> list[str]:
    """The words after `make` as the Makefile gives them to `bench`."""
    goals, flags, last = [], [], []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            goals.append(word)
        elif name == "ARGS":
            last = shlex.split(value)
        elif name not in READ_BY_MAKE:
            flags.append(f"--{name.replace('_', '-').lower()}={value}")
    return [*(goals or ["help"]), *([] if goals[:1] == ["test"] else last), *flags]


def parse(words: list[str]) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
            command, words = command_of(words)
            names = names_of_flags(command.name)
            end = words.index("--") if command.rest and "--" in words else len(words)
            full = []
            for flag in flags_with_values(words[:end]):
                name, equals, value = flag.partition("=")
                if name == "--config":  # a file of the reader's
                    continue
                if not equals or not PLACEHOLDER.search(value) or name[2:] not in names:
                    full.append(flag)
            command.parse([*full, *words[end:]])
    except BenchError as error:
        return str(error)
    return said.getvalue().strip()  # also a note on an old name


@functools.cache
def names_of_flags(command: str) -> list[str]:
    return command_of(command.split())[0].parser().names()


def flags_with_values(words: list[str]) -> list[str]:
    """`--gpus 2` as `--gpus=2`; a placeholder for several words is left out."""
    joined = []
    for word in words:
        if word in ("…", "...") and not (joined and joined[-1].startswith("--") and "=" not in joined[-1]):
            continue
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and not word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def test_every_command_line_is_one_that_bench_takes():
    lines = {(path.name, line) for path in PAGES for line in command_lines(path.read_text())}
    assert len(lines) > 200
    assert [(*each, said) for each in sorted(lines) if (said := problem(each[1]))] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make bench MODL=gpt", "--model"),
        ("make scaling", "compare scaling"),
        ("make report FORMAT=csv TO=file", "--out"),
        ("make lint QUICK=1", "quick"),
        ("make no-such", "no-such"),
        ('make cluster CMD="make scaling"', "compare scaling"),
        ("make compare --gpus 2 'half", "quotation"),
    ],
)
def test_wrong_lines(line, said):
    assert said in problem(line)
