"""The start page: a measured result, three paths, and what the browser remembers (``site/static/course.js``)."""

import json
from pathlib import Path

from bench.course import guesses, records
from bench.record.describe import machine_line

MODES = ("dp", "ddp", "horovod")


def with_start(readme: str, template: Path, notebooks: dict) -> str:
    """The course's README with the start section below its introduction. notebooks: chapter -> with its outputs."""
    head, heading, rest = readme.partition("\n## ")
    suite = records.reference("compare")
    texts = {
        "where": machine_line(suite.first).partition("; ")[0].removeprefix("CPU only: "),
        "rounds": str(suite.n),
        "table": result_table(suite), "data": chapter_data(notebooks),
    }  # fmt: skip
    start = template.read_text()
    for name, text in texts.items():
        start = start.replace(f"{{{name}}}", text)
    return f"{head.rstrip()}\n\n{start}\n{heading}{rest}"


def result_table(suite) -> str:
    """Examples per second of each mode over those of one process, as bars with 95 % intervals."""
    result = records.compared(suite)
    found = {pair.b: pair.comparison for pair in result.pairs if pair.a == result.base}
    rows = [bar(result.base, 1.0, "1")]
    for mode in MODES:
        each = found[mode]
        rows.append(bar(mode, each.ratio, f"{each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]"))
    head = '<tr><th scope="col">Mode</th><th scope="col">Images per second, relative (95 % CI)</th></tr>'
    return f'<table class="bars"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def bar(name: str, share: float, words: str) -> str:
    shown = f'<span class="bar" style="width: {60 * share:.1f}%"></span> {words}'
    return f'<tr><th scope="row"><code>{name}</code></th><td>{shown}</td></tr>'


def chapter_data(notebooks: dict) -> str:
    """Chapters and guesses for the script of the page, as JSON."""
    found = []
    for path, notebook in notebooks.items():
        asked, measured = guesses.questions(notebook), guesses.answers(notebook)
        title = notebook.cells[0].source.partition("\n")[0].lstrip("# ")
        listed = [
            {"name": f"{path.stem} {name}", "question": question, "measured": measured.get(name)}
            for name, question in asked.items()
        ]
        found.append({"name": path.stem, "page": f"{path.stem}.html", "title": title, "guesses": listed})
    text = json.dumps(found).replace("</", "<\\/")
    return f'<script type="application/json" id="course-chapters">{text}</script>'
