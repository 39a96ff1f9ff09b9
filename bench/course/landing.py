"""The start page: a measured result, three paths, and what the browser remembers (``site/static/course.js``)."""

import json
from collections.abc import Callable

from bench.course import guesses, records
from bench.record.describe import machine_line

MODES = ("dp", "ddp", "horovod")


def with_start(readme: str, start: str, made: dict, say: Callable[[str], str] = str) -> str:
    """The course's README with the start section below its introduction. made: chapter -> its ``site.Chapter``."""
    head, heading, rest = readme.partition("\n## ")
    suite = records.reference("compare")
    texts = {
        "where": machine_line(suite.first).partition("; ")[0].removeprefix("CPU only: "),
        "rounds": str(suite.n),
        "table": result_table(suite, say), "data": chapter_data(made),
    }  # fmt: skip
    for name, text in texts.items():
        start = start.replace(f"{{{name}}}", text)
    return f"{head.rstrip()}\n\n{start}\n{heading}{rest}"


def result_table(suite, say: Callable[[str], str]) -> str:
    """Examples per second of each mode over those of one process, as bars with 95 % intervals."""
    result = records.compared(suite)
    found = {pair.b: pair.comparison for pair in result.pairs if pair.a == result.base}
    rows = [bar(result.base, 1.0, "1")]
    for mode in MODES:
        each = found[mode]
        rows.append(bar(mode, each.ratio, f"{each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]"))
    titles = (say("Mode"), say("Images per second, relative (95 % CI)"))
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return f'<table class="bars"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def bar(name: str, share: float, words: str) -> str:
    shown = f'<span class="bar" style="width: {60 * share:.1f}%"></span> {words}'
    return f'<tr><th scope="row"><code>{name}</code></th><td>{shown}</td></tr>'


def chapter_data(made: dict) -> str:
    """Chapters and guesses for the script of the page, as JSON."""
    found = []
    for path, chapter in made.items():
        measured = guesses.answers(chapter.notebook)
        title = chapter.notebook.cells[0].source.partition("\n")[0].lstrip("# ")
        listed = [
            {"name": f"{path.stem} {name}", "question": question, "measured": measured.get(name)}
            for name, question in chapter.questions.items()
        ]
        found.append({"name": path.stem, "page": f"{path.stem}.html", "title": title, "guesses": listed})
    text = json.dumps(found, ensure_ascii=False).replace("</", "<\\/")
    return f'<script type="application/json" id="course-chapters">{text}</script>'
