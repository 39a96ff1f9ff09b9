"""The interactive figures of the site: ``tutorials/site/figures``, a script for each, and ``figure.js`` for all.

A text shows one by a separate line, ``![what is seen](site/figures/NAME.svg)``: the picture with the first inputs,
for notebooks and GitHub. On the site the script replaces it.
"""

import html
import re
from pathlib import Path

from bench.files import PROJECT

FOLDER = PROJECT / "tutorials" / "site" / "figures"
FIGURES = ("hang", "timeline", "memory", "allreduce", "shares", "pay")
SHARED = "figure.js"
LINE = re.compile(r"^!\[(?P<text>[^\]]*)\]\((?:\.\./)*site/figures/(?P<name>\w+)\.svg\)$", re.MULTILINE)


def embed(text: str, to_root: str = "") -> str:
    """Replace each line of a figure by its place on the page. to_root: the path from the page to the site's root.

    >>> "data-figure" in embed("![Bars](site/figures/memory.svg)"), embed("![A](pictures/memory.svg)")
    (True, '![A](pictures/memory.svg)')
    """

    def place(match: re.Match) -> str:
        name, alt, static = match["name"], html.escape(match["text"], quote=True), f"{to_root}_static/"
        image, script = (
            f'<img alt="{alt}" src="{static}{name}.svg">',
            f'<script defer src="{static}{name}.js"></script>',
        )
        return f'<div class="interactive" data-figure="{name}">{image}</div>{script}'

    return LINE.sub(place, text)


def scripts() -> list[Path]:
    return [FOLDER / SHARED, *(FOLDER / f"{name}.js" for name in FIGURES)]
