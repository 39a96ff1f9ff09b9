"""Chapters as Chinese notebooks: `bench notebooks --edition zh`.

Code and outputs are those of the English notebook. A translated heading has the English anchor.
"""

import os
import posixpath
import re
from pathlib import Path

from bench.course import chapters, site, translation
from bench.files import PROJECT

FOLDER = chapters.BUILD / translation.LANGUAGE


def write_all(names: str | None, keep: bool = False) -> int:
    """Chapters with the outputs of their last execution, or else the committed ones. keep: existing notebooks stay.
    Returns 0.
    """
    linked = set(filter(translation.is_translated, chapters.with_own_chapters()))
    wanted = translation.select_translated(chapters.with_own_chapters(names))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in wanted:
        made = FOLDER / f"{path.stem}.ipynb"
        if not (keep and made.exists()):
            chapters.write(chapter(path, linked), made)
            print(made.relative_to(PROJECT), flush=True)
    return 0


def chapter(path: Path, linked: set[Path]):
    """A chapter's notebook. linked: the texts that have a Chinese notebook."""
    notebook = chapters.notebook_of(path)
    if found := chapters.find_with_outputs(path):
        chapters.take_outputs(chapters.read_notebook(found), notebook)
    texts = translation.read_translation(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = move_links(translated(cell.source, texts), path, linked)
    return notebook


def translated(source: str, texts: dict[str, str] | None) -> str:
    """texts: None for a page that exists only in Chinese."""
    if texts is None:
        return source
    anchored = {name: block for name, block in texts.items() if not block.startswith("#")}
    headings = texts.keys() - anchored.keys()

    def mark(block: str) -> str:
        name = translation.digest(block)
        if name not in headings:
            return translation.mark_missing(block)
        anchor = re.sub(r"[^\w\- ]", "", site.plain(block).lower()).replace(" ", "-")
        return f'<a id="{anchor}"></a>\n\n{texts[name]}'

    return translation.translate(source, anchored, mark)


def move_links(source: str, path: Path, linked: set[Path]) -> str:
    """Links to a translated chapter lead to its notebook, others and pictures to the files of this clone."""

    def move(match: re.Match) -> str:
        target, hash_sign, anchor = match["target"].partition("#")
        if not target:
            return match[0]
        file = (path.parent / target).resolve()
        is_here = file.with_suffix(".md") in linked
        place = f"{file.stem}.ipynb" if is_here else os.path.relpath(file, FOLDER).replace(os.sep, posixpath.sep)
        sign = "!" if match[0].startswith("!") else ""
        return f"{sign}[{match['text']}]({place}{hash_sign}{anchor})"

    return site.replace_targets(site.PICTURE, move, site.replace_targets(site.LINK, move, source))
