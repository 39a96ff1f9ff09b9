"""Every command line in the README, the manual, the chapters and the exercises is one that `bench` takes."""

import ast
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator

import pytest

from bench.__main__ import command_of
from bench.cli import ALIASES, COMMANDS, RENAMED
from bench.errors import BenchError
from bench.files import PROJECT

PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", PROJECT / "results" / "README.md"]
PAGES += sorted((PROJECT / "tutorials").rglob("*.md"))
OF_MAKE_ALONE = {"setup": (), "test": ("QUICK",), "lint": (), "clean": ()}
READ_BY_MAKE = ("VENV", "PYTHON", "TORCH")
NAMES = {*COMMANDS, *ALIASES, *RENAMED, *OF_MAKE_ALONE}
PARTS = {word for command in COMMANDS.values() for word in command.parts}
BLOCK = re.compile(r"^( *)```+([\w{}-]*).*?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LAUNCHED = r"(?:srun|torchrun|mpirun|horovodrun|\S*python\S*)\b.*? (?:-m )?(?=bench )"
LINE = re.compile(rf"^\s*(?:[$!] ?|{LAUNCHED})?((?:make|bench) .*)$", re.MULTILINE)
COMMAND = "|".join(sorted(NAMES, key=len, reverse=True))
VALUE = r"""(?:"[^"]*"|[^\s()`]+)"""
IN_TEXT = re.compile(
    rf"\b((?:make|bench) (?:{COMMAND})\b(?: (?:{'|'.join(sorted(PARTS))})\b)?(?: [\w/.]+(?= --))?"
    rf"(?: (?:--[\w-]+(?:[= ]{VALUE})?|[A-Z_]+={VALUE}|\x00))*)"
)  # in a string there may be prose after it
PLACEHOLDER = re.compile(r"…|\.\.\.|<.*>|\x00|^[A-Z_]+$|^all$")  # GPUS=all: as many as this machine has


def command_lines(text: str) -> Iterator[str]:
    """The lines of `make` and `bench` of a page: in blocks, in code within a sentence, and in the strings of Python."""
    given = {}
    for _, language, code in BLOCK.findall(text):
        if language.strip("{}").startswith(("python", "code-cell")):
            yield from lines_of_python(code, given)
        else:
            yield from LINE.findall(code.replace("\\\n", " "))
    for span in SPAN.findall(BLOCK.sub("", text)):
        yield from LINE.findall(" ".join(span.split()))


def lines_of_python(code: str, given: dict[str, ast.expr]) -> Iterator[str]:
    """given: the variables of the page so far; those of this block are added."""
    tree = ast.parse(re.sub(r"^(\s*)[!%].*$", r"\1pass", code, flags=re.MULTILINE))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    given |= {node.targets[0].id: node.value for node in ast.walk(tree)
              if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in inside:
            yield from IN_TEXT.findall(text_of(node, given))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("course.bench", "bench"):
            yield from line_of_call(node, given)


def text_of(node: ast.expr, given: dict[str, ast.expr]) -> str:
    """A string; of an f-string with the strings that it is made from, and a placeholder for other values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, given) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        value = given.get(node.value.id)
        if isinstance(value, ast.Constant | ast.JoinedStr) and (text := text_of(value, {})):
            return text
    return "\0"


def line_of_call(call: ast.Call, given: dict[str, ast.expr]) -> Iterator[str]:
    """``course.bench("compare", GPUS=2, **common)`` as a line of make. given: the block's variables."""
    command = ast.literal_eval(call.args[0]) if call.args else "bench"
    names = list(names_of(call, given))
    yield " ".join(["make", command, *(f"{name}=…" for name in names if name not in ("timeout", "quiet", "cluster"))])
    for keyword in call.keywords:
        if keyword.arg == "cluster" and isinstance(keyword.value, ast.Dict):
            yield " ".join(["make cluster", *(f"{key.value}=…" for key in keyword.value.keys)])


def names_of(node: ast.expr, given: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Dict):
        yield from (key.value for key in node.keys if isinstance(key, ast.Constant))
    elif isinstance(node, ast.Name) and node.id in given:
        yield from names_of(given[node.id], {})  # not its own, as in `steps = steps | {...}`
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            yield from [keyword.arg] if keyword.arg else names_of(keyword.value, given)


def words_of(line: str) -> list[str]:
    """A line as a shell reads it, up to a comment, a pipe or the end of the command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = []
    for word in lexer:
        if word in ("|", "&&", "||", ";", ">", "2>&1", "&"):
            break
        words.append(word)
    return words


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
    if words[0] in RENAMED:
        return f"{words[0]} is {RENAMED[words[0]]}"
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
        with contextlib.redirect_stderr(said):
            command, words = command_of(words)
            names = names_of_flags(command.name)
            end = words.index("--") if command.rest and "--" in words else len(words)
            full = []
            for flag in flags_with_values(words[:end]):
                name, equals, value = flag.partition("=")
                if not equals or not PLACEHOLDER.search(value) or name[2:] not in names:
                    full.append(flag)
            command.parse([*full, *words[end:]])
    except BenchError as error:
        return str(error)
    except SystemExit:
        return said.getvalue().strip()
    return ""


@functools.cache
def names_of_flags(command: str) -> list[str]:
    return command_of(command.split())[0].parser().names()


def flags_with_values(words: list[str]) -> list[str]:
    """`--gpus 2` as `--gpus=2`; a placeholder for several words is left out."""
    joined = []
    for word in words:
        if word in ("…", "...", "\0") and not (joined and joined[-1].startswith("--") and "=" not in joined[-1]):
            continue
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and not word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_command_line_is_one_that_bench_takes(path):
    wrong = [(line, said) for line in command_lines(path.read_text()) if (said := problem(line))]
    assert wrong == []


def test_enough_lines_are_found():
    """A page whose lines are not found could hold any."""
    assert len({line for path in PAGES for line in command_lines(path.read_text())}) > 200


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("```\n$ make bench GPUS=2 \\\n  LR=1\nmake it\n```\n", ["make bench GPUS=2    LR=1", "make it"]),
        ("Then `make report\nOUT=a` does, as `a.py` and make help do.", ["make report OUT=a"]),
        ('```python\nprint("then make compare GPUS=2")\n```\n', ["make compare GPUS=2"]),
        ('```python\nshell(f"bench predict step --link {rate}mbit")\n```\n', ["bench predict step --link \0mbit"]),
        ('```python\nmore = f"--rate {n}"\nshell(f"bench cluster emulate --compute {r} {what} {more}")\n```\n',
         ["bench cluster emulate --compute \0 \0 --rate \0"]),
        ('```python\ncommon = dict(LR=1)\ncourse.bench("compare", GPUS=2, **common)\n```\n',
         ["make compare GPUS=… LR=…"]),
    ],
)  # fmt: skip
def test_lines_of_a_page(text, lines):
    assert list(command_lines(text)) == lines


@pytest.mark.parametrize(
    "line",
    [
        "make bench MODE=ddp GPUS=N OUT=… # a comment",
        'make cluster NODES=2 LINK=100mbit CMD="make compare scaling"',
        "make test QUICK=1 ARGS='-n 0'",
        "make jupyter ARGS='-- --debug'",
        "bench time --steps 3 -- torchrun train.py --no-such",
        "bench report FOLDER",
    ],
)
def test_a_right_line(line):
    assert problem(line) == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make bench MODL=gpt", "--model"),
        ("make scaling", "compare scaling"),
        ("make selfbench", "tests.validation.overhead"),
        ("make report FORMAT=csv TO=file", "--out"),
        ("bench run --nprocs …", "--nprocs"),
        ("make lint QUICK=1", "quick"),
        ("make no-such", "unknown command"),
        ('make cluster CMD="make scaling"', "compare scaling"),
        ("make compare --gpus 2 'half", "No closing quotation"),
    ],
)
def test_a_wrong_line(line, said):
    assert said in problem(line)
