"""CONFIG=file.toml: options of a run by their names, in tables named by the first word of a section in the help (mode,
training, ddp), or without tables."""

import difflib
import importlib.util
import re
from pathlib import Path

from bench.config.command_line import listed, read_option, separator
from bench.config.fields import base_type
from bench.config.options import BY_NAME, SECTIONS
from bench.errors import UserError

KINDS = {bool: "a switch (true or false)", int: "a whole number", float: "a number", str: "a text"}
TABLES = [re.match(r"\w+", section.__doc__)[0].lower() for section in SECTIONS]


def read(path: str, lists: bool) -> dict[str, str]:
    """The options of a file: field -> its text, as on the command line. lists: a value may be a list. Raises UserError
    with the line of the first mistake."""
    if not (toml := importlib.util.find_spec("tomllib") or importlib.util.find_spec("tomli")):
        raise UserError("CONFIG needs Python 3.11 or newer, or the package tomli: install it, or type the options")
    tomllib = importlib.import_module(toml.name)
    file, found = Path(path).expanduser(), {}
    if not file.is_file():
        raise UserError(f"CONFIG={path} is not a file: name a TOML file of options, with lines such as batch = 64")
    try:
        text = file.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise UserError(f"CONFIG={path}: {error.strerror}: name a TOML file of options") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"CONFIG={path} is not TOML: {error}: write lines such as batch = 64") from None
    for name, value in tables.items():
        inner = value.items() if isinstance(value, dict) and name in TABLES else [(name, value)]
        for key, each in inner:
            try:
                if key in BY_NAME and BY_NAME[key].name in found:
                    raise UserError(f"{key} is there twice, in two tables: give it once")
                found |= {BY_NAME[key].name: text_of(key, each, lists)} if key in BY_NAME else refuse(key, each)
            except UserError as error:
                raise UserError(f"{path}, line {line_of(key, text)}: {error}") from None
    return found


def line_of(key: str, text: str) -> int:
    lines = enumerate(text.split("\n"), 1)
    return next((number for number, line in lines if re.match(rf"[^=#]*\b{re.escape(key)}\b", line)), 1)


def refuse(key: str, value):
    known = TABLES if isinstance(value, dict) else BY_NAME
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1)
    what = f"[{key}] is not a section of options" if isinstance(value, dict) else f"{key} is not an option of a run"
    names = ", ".join(TABLES) if isinstance(value, dict) else "`bench run --help-all` lists them"
    raise UserError(f"{what}: {f'did you mean {near[0]}?' if near else names}")


def text_of(key: str, value, lists: bool) -> str:
    """The text of an option's value in TOML. Raises UserError for a value that no run can have."""
    f, several = BY_NAME[key], isinstance(value, list)
    texts = [str(int(each)) if isinstance(each, bool) else str(each) for each in (value if several else [value])]
    if several and not lists:
        raise UserError(f"{key} is a list, which only `bench sweep` takes: give one value")
    for each in value if several else [value]:
        if not isinstance(each, str | int | float) or (isinstance(each, bool) and base_type(f) is not bool):
            raise UserError(f"{key} has the wrong type: {KINDS[base_type(f)]} is needed, not {each!r:.40}")
        if isinstance(each, str) and "\0" in each:
            raise UserError(f"{key} contains a null character, which no value may: take it out")
    text = separator(f).join(texts)
    for each in listed(f, text) if lists else texts:
        if (key, each) not in (("gpus", "all"), ("batch", "max")):
            read_option(f, each)
    return text
