"""How nbgrader executes a notebook here, and what of a student's text a feedback page shows.

A module of its own because it can be imported only where nbgrader is.
"""

import html
import re
from pathlib import Path

import bleach
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert.filters import markdown2html
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute

from bench.course.exercises import closed, contained
from bench.errors import as_unicode

MOST_OUTPUT = 2_000_000  # characters of all cells' outputs together
LEFT_OUT = "\n… the rest is left out: the cells print too much\n"
EACH_OUTPUT = 200  # counted for each output in addition to its text
MOST_ERROR = 20_000  # characters of a line of an error
MOST_ERROR_LINES = 200  # the last ones
SHOWN = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "image/jpeg")
# Layout only: no tag that acts, leads away, loads anything or covers the page.
TAGS = ("h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "div", "span", "pre", "code", "blockquote", "em", "strong",
        "b", "i", "u", "s", "del", "sub", "sup", "small", "kbd", "ul", "ol", "li", "dl", "dt", "dd", "table", "caption",
        "thead", "tbody", "tfoot", "tr", "th", "td", "img", "a")  # fmt: skip
CLASSES = {
    "div": re.compile(r"highlight( hl-[\w-]+)?"),  # a block of highlighted code
    "span": re.compile(r"[a-z][a-z0-9]?|err|hll|cpf|ges"),  # a word in it; no class of the page
}


class Stuck(Exception):
    """The kernel does not answer any more."""


class Execution(Execute):
    """nbgrader's execution, but:

    - After two late cells in a row the kernel counts as stuck. If it is stuck or dead, cells that have run still count.
    - Processes left by the cells are ended before points are counted. A changed gradebook is restored (``changed``).
    - Output beyond MOST_OUTPUT and malformed messages are dropped.
    - A test that prints a warning has not failed, and one that shows a value has no partial score.
    """

    gradebook: Path
    changed = False

    def preprocess(self, notebook, resources):
        before = self.gradebook.read_bytes()
        with contained.adopting_orphans() as mine:
            try:
                return self.run_cells(notebook, resources)
            finally:
                contained.end_all(mine)
                journals = [self.gradebook.with_name(self.gradebook.name + end) for end in closed.JOURNALS]
                journals = [path for path in journals if path.exists()]
                if journals or not self.gradebook.exists() or self.gradebook.read_bytes() != before:
                    for path in journals:
                        path.unlink()
                    self.gradebook.write_bytes(before)
                    Execution.changed = True

    def run_cells(self, notebook, resources):
        self.late, self.reached, self.printed = 0, 0, 0
        try:
            return super().preprocess(notebook, resources)
        except DeadKernelError:
            why = "the kernel has died"
        except CellTimeoutError:
            why = f"a cell was not back within {self.timeout} s, and did not end when it was interrupted"
        except Stuck:
            why = f"two cells in a row were not back within {self.timeout} s"
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and index >= self.reached:
                error = f"this cell has not run to its end: {why}"
                cell.outputs.append(new_output("error", ename="NotRun", evalue=error, traceback=[f"NotRun: {error}"]))
        return notebook, resources

    def process_message(self, msg, cell, cell_index):
        content = checked_content(msg["msg_type"], msg["content"])
        return None if content is None else super().process_message(msg | {"content": content}, cell, cell_index)

    def output(self, outs, msg, display_id, cell_index):
        content = msg["content"]
        if msg["msg_type"] != "error":
            before = self.printed
            self.printed += EACH_OUTPUT + len(content.get("text", "")) + sum(map(len, content.get("data", {}).values()))
            if self.printed > MOST_OUTPUT:
                if before <= MOST_OUTPUT:
                    outs.append(new_output("stream", name="stdout", text=LEFT_OUT))
                return None
        return super().output(outs, msg, display_id, cell_index)

    def on_cell_start(self, cell, cell_index, **_):
        self.reached = cell_index

    def on_cell_executed(self, **kwargs):
        super().on_cell_executed(**kwargs)
        in_time = kwargs["execute_reply"]["content"].get("ename") != self.error_on_timeout["ename"]
        self.late = 0 if in_time else self.late + 1
        if self.late == 2:
            raise Stuck
        for output in kwargs["cell"].outputs:
            if output.output_type == "stream":
                output.name = "stdout"
            elif output.output_type == "execute_result":
                output.output_type = "display_data"
                del output["execution_count"]


def checked_content(kind: str, content) -> dict | None:
    """The used part of a kernel's message, which an answer may have sent: text without metadata. None: drop it."""
    content = content if isinstance(content, dict) else {}
    count = content.get("execution_count")
    count = count if type(count) is int else None
    match kind:
        case "status":
            return {"execution_state": str(content.get("execution_state"))}
        case "clear_output":
            return {"wait": bool(content.get("wait"))}
        case "execute_input":
            return None if count is None else {"execution_count": count}
        case "stream":
            return {"name": "stdout", "text": text(content.get("text"))}
        case "error":
            lines = content.get("traceback")
            lines = lines[-MOST_ERROR_LINES:] if isinstance(lines, list) else []
            found = {name: text(content.get(name))[:MOST_ERROR] for name in ("ename", "evalue")}
            return found | {"traceback": [text(line)[:MOST_ERROR] for line in lines]}
        case "display_data" | "update_display_data" | "execute_result":
            data, transient = content.get("data"), content.get("transient")
            data = data if isinstance(data, dict) else {}
            name = transient.get("display_id") if isinstance(transient, dict) else None
            found = {"data": {form: text(data[form]) for form in SHOWN if form in data}, "metadata": {}}
            found["transient"] = {"display_id": name} if isinstance(name, str) else {}
            return found | ({"execution_count": count} if kind == "execute_result" else {})
    return None


def text(value) -> str:
    """A text of a message, valid as UTF-8; empty for anything else."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "".join(value)
    return as_unicode(value[:MOST_OUTPUT]) if isinstance(value, str) else ""


# --- Feedback pages ---------------------------------------------------------------------------------------------------
# nbgrader's page would show all HTML of a Markdown cell, and a policy in the page does not cover every tag
# (``<meta http-equiv=refresh>``).


def is_kept(tag: str, name: str, value: str) -> bool:
    match name:
        case "class":
            return tag in CLASSES and bool(CLASSES[tag].fullmatch(value))
        case "href":
            return tag == "a" and value.lower().startswith(("https://", "http://", "mailto:", "#"))
        case "src":
            return tag == "img" and value.lower().startswith("data:image/")
        case "colspan" | "rowspan":
            return tag in ("td", "th") and value.isdecimal() and len(value) < 4
    return name in ("alt", "title")


def clean(page: str | bytes) -> str:
    page = page.decode(errors="replace") if isinstance(page, bytes) else str(page)
    try:
        return bleach.clean(page, TAGS, is_kept, protocols=("http", "https", "mailto", "data"))
    except Exception:  # a library's, or a RecursionError for deeply nested tags
        return f"<pre>{html.escape(page)}</pre>"


def markdown(source: str) -> str:
    try:
        return clean(markdown2html(source))
    except Exception:
        return f"<pre>{html.escape(source)}</pre>"
