"""How nbgrader runs a notebook here: a cell that hangs, or a kernel that dies, costs that task and those after it.

A module of its own because it can be imported only where nbgrader is.
"""

from pathlib import Path

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute

from bench.course.exercises import closed, contained
from bench.errors import as_unicode

MOST_OUTPUT = 2_000_000  # characters that the cells of a notebook print together
LEFT_OUT = "\n… the rest is left out: the cells print too much\n"
EACH_OUTPUT = 200  # that each of them counts for besides
MOST_ERROR = 20_000  # characters of a line of an error
MOST_ERROR_LINES = 200  # the last ones
SHOWN = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "image/jpeg")


class Stuck(Exception):
    """The kernel does not answer any more."""


class Execution(Execute):
    """nbgrader's own, and six things more.

    - After two cells in a row that were not back in time, the kernel is taken for stuck, and ended.
    - When it is stuck or has died, the cells that have not run count as failed, and those that have keep their points.
    - When the cells have run, what they have left running is ended, before points are counted; ``changed`` says whether
      they have changed the gradebook, or left a journal of it, and it is then as before.
    - What they print beyond MOST_OUTPUT is left out, and what is not in the form of a notebook's output.
    - What a test prints as a warning is no failure, and what it shows as a value is no partial score.
    """

    gradebook: Path
    changed = False

    def preprocess(self, notebook, resources):
        """Run all cells; returns the notebook with outputs."""
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
        """As ``preprocess``, without what follows it."""
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
        """A message of the kernel, in which answers run and can send any: what is not in its form has no effect."""
        content = in_form(msg["msg_type"], msg["content"])
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


def in_form(kind: str, content) -> dict | None:
    """What is used of a message: its content in the form that a notebook has it in; None for a message without a use.

    Only text, in the forms that a page shows; no metadata, which a page makes attributes of.
    """
    content = content if isinstance(content, dict) else {}
    count = content.get("execution_count")
    match kind:
        case "status":
            return {"execution_state": str(content.get("execution_state"))}
        case "clear_output":
            return {"wait": bool(content.get("wait"))}
        case "execute_input":
            return {"execution_count": count} if type(count) is int else None
        case "stream":
            return {"name": "stdout", "text": text(content.get("text"))}
        case "error":
            lines = content.get("traceback")
            lines = [text(line)[:MOST_ERROR] for line in lines[-MOST_ERROR_LINES:]] if isinstance(lines, list) else []
            return {
                "ename": text(content.get("ename"))[:MOST_ERROR],
                "evalue": text(content.get("evalue"))[:MOST_ERROR],
                "traceback": lines,
            }
        case "display_data" | "update_display_data" | "execute_result":
            data, transient = content.get("data"), content.get("transient")
            data = data if isinstance(data, dict) else {}
            named = transient.get("display_id") if isinstance(transient, dict) else None
            shown = {form: text(data[form]) for form in SHOWN if form in data}
            found = {
                "data": shown,
                "metadata": {},
                "transient": {"display_id": named} if isinstance(named, str) else {},
            }
            return found | (
                {"execution_count": count if type(count) is int else None} if kind == "execute_result" else {}
            )
    return None


def text(value) -> str:
    """A text of a message, which can be written to a file; empty for anything else."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "".join(value)
    return as_unicode(value[:MOST_OUTPUT]) if isinstance(value, str) else ""
