"""Problem sets in Chinese: `bench course release --edition zh`. Code and ids are those of the English copy."""

import json
from pathlib import Path

from bench.course import translation
from bench.course.exercises import text
from bench.errors import UserError

INTRODUCTION = "start-text-2"  # ends the id of the cell that is made from a template


def select_translated(paths: list[Path]) -> list[Path]:
    """Print the names of the others in one line. Raises UserError if none is translated."""
    found = [path for path in paths if is_translated(path)]
    if others := ", ".join(path.stem for path in paths if path not in found):
        if not found:
            raise UserError(f"EDITION={translation.LANGUAGE}: not translated: {others}: use EDITION=en")
        print(f"not translated: {others}", flush=True)
    return found


def is_translated(path: Path) -> bool:
    """Also true for a page that exists only in Chinese."""
    return translation.FOLDER in path.parents or translation.page_of(path).chinese.exists()


def problem_set(path: Path, released: str, minutes: int | None) -> str:
    """The students' copy of a set in Chinese. released: the English one. Without a translation it stays as it is."""
    if (texts := translation.texts_of(path)) is None:
        return released
    notebook = json.loads(released)
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        if cell["metadata"].get("nbgrader", {}).get("grade_id", "").endswith(INTRODUCTION):
            cell["source"] = text.render_template("introduction.zh.md", minutes=minutes).strip()
        else:
            source = cell["source"]
            source = source if isinstance(source, str) else "".join(source)
            cell["source"] = translation.translate(source, texts, translation.mark_missing)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
