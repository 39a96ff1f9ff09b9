"""``python -m bench.course.exercises.cells RESULTS LIMIT_S NOTEBOOK …``: run the code cells of notebooks, in order.

No Jupyter is needed. Every notebook has a fresh ``__main__``, so its functions can be sent to ranks. A cell that
raises, or is not back in time, does not stop the others, as in nbgrader. RESULTS is a file with one line of JSON a
cell: "notebook" (its number), "cell" (id), "error" (None when it ran to its end), "output".
"""

import builtins
import contextlib
import io
import json
import linecache
import os
import re
import signal
import sys
import threading
import traceback
import types
from pathlib import Path

GRACE_S = 5.0  # from the signal that a cell is late to the end of a process that does not heed it
NOT_PYTHON = re.compile(r"^\s*[%!?]")


class Late(BaseException):
    """A cell is not back in time. No Exception, so that an answer that catches everything does not catch this."""


def main() -> None:
    results, limit_s, notebooks = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    os.environ.setdefault("MPLBACKEND", "agg")
    signal.signal(signal.SIGALRM, late)
    sys.path.insert(0, "")
    with open(results, "w", buffering=1) as file:
        for number, notebook in enumerate(notebooks):
            sys.modules["__main__"] = main_module = types.ModuleType("__main__")
            main_module.__dict__.update(display=display, __builtins__=builtins)
            os.chdir(Path(notebook).parent)
            for cell in code_cells(notebook):
                note = {"notebook": number, "cell": cell["id"]}
                with ended_when_stuck(limit_s, file, note):
                    error, output = run(cell["source"], cell["id"], main_module, limit_s)
                write(file, note, error, output)
    os._exit(0)  # whatever threads an answer has left


def write(file, note: dict, error: str | None, output: str = "") -> None:
    file.write(json.dumps(note | {"error": error, "output": output}) + "\n")


def code_cells(path: str) -> list[dict]:
    """Id and source of the code cells of a notebook."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [{"id": name_of(cell, number), "source": "".join(cell["source"])} for number, cell in enumerate(code)]


def name_of(cell: dict, number: int) -> str:
    """The id that a problem set has given to a cell, or one for a cell that a student has added."""
    return cell.get("metadata", {}).get("nbgrader", {}).get("grade_id") or cell.get("id") or f"cell-{number}"


def run(source: str, name: str, module: types.ModuleType, limit_s: float) -> tuple[str | None, str]:
    """Run one cell. Returns what went wrong, as the student should read it, and what it has printed."""
    filename = f"<{name}>"
    source = "\n".join("pass" if NOT_PYTHON.match(line) else line for line in source.split("\n"))
    linecache.cache[filename] = (len(source), None, [f"{line}\n" for line in source.split("\n")], filename)
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            exec(compile(source, filename, "exec"), module.__dict__)
        except Late:
            error = f"not back within {limit_s:g} s: a loop without an end, or a collective that not all ranks enter"
        except BaseException as raised:  # SystemExit, too
            error = explained(raised)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return error, printed.getvalue()


def explained(error: BaseException) -> str:
    """The way through the cells, without ours, and the error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith("<s")]
    places = [f"{frame.filename}, line {frame.lineno}:\n    {frame.line}" for frame in frames]
    return "\n".join([*places, *(line.rstrip() for line in traceback.format_exception_only(error))])


def display(*values) -> None:
    """What Jupyter's function of this name is to a program without pictures."""
    print(*map(repr, values), sep="\n")


def late(*_) -> None:
    raise Late


@contextlib.contextmanager
def ended_when_stuck(limit_s: float, file, note: dict):
    """End this process when a cell cannot even be interrupted, and write that as its result."""
    ended = threading.Event()

    def watch() -> None:
        if not ended.wait(limit_s + GRACE_S):
            write(file, note, f"not back within {limit_s:g} s, and could not be interrupted")
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


if __name__ == "__main__":
    main()
