"""The site's scripts, run by Node if it is installed, else by headless Chromium."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.course.figures import FOLDER, scripts
from tests.browser.chromium import CHROMIUM

NODE = shutil.which("node")
LIMIT_S = 60
needs_javascript = pytest.mark.skipif(not (NODE or CHROMIUM), reason="neither Node nor Chromium is installed")


# JavaScript: a figure -> its states, of every preset and of every control at its smallest and largest value.
STATES_OF = """(figure => [...figure.controls.flatMap(c =>
  c.type === "range" ? [c.min, c.max].map(value => ({ [c.id]: value }))
  : c.type === "select" ? c.options.map(([value]) => ({ [c.id]: value }))
  : c.type === "check" ? [{ [c.id]: true }, { [c.id]: false }] : [{ [c.id]: "" }, { [c.id]: "nonsense" }]),
  ...figure.presets.map(preset => preset.state)].map(change => ({ ...Figure.defaults(figure), ...change })))"""


def evaluate(scripts: list[Path], expression: str, folder: Path):
    """The value of an expression after these scripts, as JSON. folder: for temporary files."""
    code = "".join(path.read_text() + "\n" for path in scripts)
    if NODE:
        file = folder / "run.cjs"
        file.write_text(f"{code}\nconsole.log(JSON.stringify({expression}));")
        done = subprocess.run([NODE, str(file)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    file = folder / "run.html"
    write = f"document.body.textContent = JSON.stringify({expression});"
    file.write_text(f"<!doctype html><meta charset=utf-8><body><script>{code}\n{write}</script></body>")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return json.loads(html.unescape(re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)[1]))


def still_pictures(folder: Path) -> Iterator[tuple[Path, str]]:
    """The picture of each interactive figure with its first inputs, for pages that run no script."""
    drawn = "Object.fromEntries(Object.keys(Figure.all).map(name => [name, Figure.still(name)]))"
    for name, text in evaluate(scripts(), drawn, folder).items():
        yield FOLDER / f"{name}.svg", f"{text}\n"
