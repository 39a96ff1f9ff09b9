"""Problem sets in Chinese: `bench course release --edition zh`. Code and ids are those of the English copy."""

import json
from pathlib import Path

from bench.course import translation
from bench.course.exercises import text

INTRODUCTION = "start-text-2"  # ends the id of the cell that is made from a template


def problem_set(path: Path, released: str, minutes: int | None) -> str:
    """The students' copy of a set in Chinese. released: the English one. Without a translation it stays as it is."""
    if (texts := translation.read_translation(path)) is None:
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
