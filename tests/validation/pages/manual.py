"""What the README and the manual say that the code knows: tables of options, modes, commands, mistakes, data sets.

``documents`` gives every such text as it should be; `python -m tests.validation.renew` writes them, and a test says
when one is stale.
"""

import dataclasses
import functools
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from bench.cli import COMMANDS
from bench.cli.actions.run_output import announce, print_run
from bench.cli.base import GROUPS, Command
from bench.config.data_sets import DATA_SETS
from bench.config.fields import base_type, in_words, variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, KNOBS, SECTIONS
from bench.errors import ExitCode
from bench.files import PROJECT
from bench.mistakes import DETECTED
from bench.report import markdown
from tests.validation.pages import (
    forecast_checked,
    forecast_example,
    forecast_published,
    predicted,
    reference_page,
    script_changes,
    watched,
)

REFERENCE = PROJECT / "results" / "reference"
MACHINE = "cpu-2-cores-xeon"  # whose figures the README quotes
FORECAST_CHECK = REFERENCE / "cpu-2-cores-epyc" / "forecast-check"


def documents() -> Iterator[tuple[Path, str]]:
    """(path, text as it should be) of every text that is made from code or records, wholly or in blocks."""
    made = {name: make() for name, make in BLOCKS.items()}
    for path in [PROJECT / "README.md", *sorted((PROJECT / "tutorials" / "manual").glob("*.md"))]:
        yield path, with_blocks(path.read_text(), made)
    for folder in reference_folders():
        yield folder / "README.md", reference_page.page(folder)


def reference_folders() -> list[Path]:
    return sorted(path for path in REFERENCE.iterdir() if path.is_dir())


def options(section: type) -> str:
    rows = []
    for f in dataclasses.fields(section):
        if not f.metadata["within"]:
            rows.append([f"`{variable_of(f)}`", default_of(f), " ".join([f.metadata["help"], *more(f)])])
    head = [("variable", False), ("default", False), ("what it is", False)]
    return f"{section.__doc__}\n\n" + markdown.table(head, rows)


def default_of(f: dataclasses.Field) -> str:
    if f.default is None:
        return ""
    return f"`{f.default:g}`" if base_type(f) is not str else f"`{f.default}`"


def more(f: dataclasses.Field) -> Iterator[str]:
    if f.metadata["choices"]:
        yield f"[{', '.join(f'`{choice}`' for choice in f.metadata['choices'])}]"
    if f.metadata["min"]:
        yield f"[≥ {f.metadata['min']:g}]"
    if f.metadata["above"] is not None:
        yield f"[> {f.metadata['above']:g}]"
    if f.name in KNOBS:
        yield f"(only {', '.join(name for name, info in MODES.items() if f.name in info.knobs)})"


def modes() -> str:
    rows = []
    for name, info in MODES.items():
        own = ", ".join(dict.fromkeys(f"`{variable_of(FIELDS[knob])}`" for knob in info.knobs))
        rows.append([f"`{name}`", info.summary, " or ".join(info.launchers), own])
    head = [("`MODE`", False), ("what it is", False), ("launcher", False), ("backend options", False)]
    return markdown.table(head, rows)


def data_sets() -> str:
    rows = []
    for name, info in DATA_SETS.items():
        size = info.image_size or ("by device" if info.workload == "images" else "")
        rows.append([f"`{name}{':PATH' if info.path else ''}`", str(info.train_examples or ""), str(size),
                     "yes" if info.augment else "no", "yes" if info.validation else "no"])  # fmt: skip
    head = [("`DATA`", False), ("training examples", True), ("image size", True), ("augmented by default", False),
            ("held-out set", False)]  # fmt: skip
    return markdown.table(head, rows)


def mistakes() -> str:
    rows = []
    for mistake in DETECTED.values():
        switch = " ".join(f"`{in_words(FIELDS[name], value)}`" for name, value in mistake.wrong.items())
        made = switch if mistake.lab else "(detected by a Watch)" if mistake.watched else "(only detected)"
        rows.append([f"`{mistake.name}`", mistake.title, made, mistake.consequence, mistake.remedy])
    head = [("name", False), ("the mistake", False), ("how to make it", False), ("consequence", False),
            ("what to do", False)]  # fmt: skip
    return markdown.table(head, rows)


def claim() -> str:
    return reference_page.claim(REFERENCE / MACHINE, "compare", "ratios")


def sample() -> str:
    """What `make bench MODE=ddp GPUS=4` printed on the reference machine."""
    record, others = reference_page.single_run(REFERENCE / MACHINE)
    console = Console(file=io.StringIO(), width=126, highlight=False, markup=False)
    announce(console, record.config)
    print_run(console, record, others)
    lines = "\n".join(text.rstrip() for text in console.file.getvalue().splitlines())
    return f"```\n{lines}\nrecord: results/runs/{record.run_id}/record.json\n```\n"


def commands() -> str:
    """All commands and their parts, by what for."""
    rows = []
    for group in GROUPS:
        for number, line in enumerate(each for each in COMMANDS.values() if each.group == group):
            rows.append(["" if number else group, f"`{example_of(line)}`", line.help])
            rows += [["", f"`{example_of(part)}`", part.help] for part in line.parts.values()]
    return markdown.table([("to", False), ("command", False), ("what it does", False)], rows)


def example_of(line: Command) -> str:
    """A command as people give it to make, without its rarer variables; … for the part that it needs."""
    return f"make {line.make} {line.example.partition('[')[0] if line.run else '…'}".rstrip()


def exit_codes() -> str:
    return markdown.table([("code", True), ("meaning", False)], [[str(int(code)), code.meaning] for code in ExitCode])


BLOCKS: dict[str, Callable[[], str]] = {
    f"options-{section.__name__.lower()}": functools.partial(options, section) for section in SECTIONS
} | {
    "commands": commands,
    "exit-codes": exit_codes,
    "sample": sample,
    "modes": modes,
    "data-sets": data_sets,
    "mistakes": mistakes,
    "claim": claim,
    "local-cost": lambda: reference_page.finding(REFERENCE / "cpu-2-cores-epyc", "accuracy", "local", "accuracy"),
    "watched": lambda: watched.scripts(REFERENCE / "cpu-2-cores-epyc" / "watched.json"),
    "watch-cost": lambda: watched.cost(REFERENCE / MACHINE / "watched-cost.json"),
    "memory-kinds": predicted.kinds,
    "memory-measured": lambda: predicted.measured(REFERENCE / MACHINE / "memory.json"),
    "forecast-check": lambda: forecast_checked.figures(FORECAST_CHECK),
    "forecast-accuracy": lambda: forecast_checked.accuracy(FORECAST_CHECK),
    "advice-check": lambda: forecast_checked.advised(FORECAST_CHECK),
    "forecast-example": lambda: forecast_example.text(FORECAST_CHECK),
    "forecast-fit": lambda: forecast_example.fitted(FORECAST_CHECK),
    "forecast-tables": forecast_published.sources,
    "forecast-published": forecast_published.summary,
    "forecast-published-rows": forecast_published.rows,
    "forecast-fitted": forecast_published.learned_summary,
    "forecast-fitted-rows": forecast_published.learned_rows,
    "script-changes": script_changes.text,
    "published-time": lambda: watched.timed(REFERENCE / "cpu-2-cores-epyc" / "time-published.json"),
    "published": lambda: watched.published(REFERENCE / MACHINE / "watched-published.json"),
}


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """Replace what is between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` by the block of that name.

    >>> with_blocks("a\\n<!-- begin: x -->\\nold\\n<!-- end: x -->\\n", {"x": "new\\n"})
    'a\\n<!-- begin: x -->\\nnew\\n<!-- end: x -->\\n'
    """

    def filled(found: re.Match) -> str:
        return f"<!-- begin: {found[1]} -->\n{blocks[found[1]]}<!-- end: {found[1]} -->"

    return re.sub(r"<!-- begin: ([\w-]+) -->\n.*?<!-- end: \1 -->", filled, text, flags=re.DOTALL)
