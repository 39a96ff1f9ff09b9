"""``python -m bench.course.exercises.cells RESULTS LIMIT_S NOTEBOOK …``: run the code cells of notebooks, in order.

Without Jupyter. Each notebook has a fresh ``__main__``, so that its functions can be sent to ranks. As in nbgrader, a
cell that raises or is late does not stop the others. RESULTS gets one line of JSON per cell: "notebook" (number),
"cell" (id), "error" (None if it succeeded), "output".
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

GRACE_S = 5.0  # after the signal, before a process that ignores it is ended
NOT_PYTHON = re.compile(r"^\s*[%!?]")


class CellTimeout(BaseException):
    """A cell is late. Not an Exception, so that an answer that catches everything does not catch it."""


def main() -> None:
    results, limit_s, notebooks = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    os.environ.setdefault("MPLBACKEND", "agg")
    signal.signal(signal.SIGALRM, raise_timeout)
    sys.path.insert(0, "")
    with open(results, "w", buffering=1) as file:
        for number, notebook in enumerate(notebooks):
            sys.modules["__main__"] = main_module = types.ModuleType("__main__")
            main_module.__dict__.update(display=display, __builtins__=builtins)
            os.chdir(Path(notebook).parent)
            cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
            for place, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
                grade_id = cell.get("metadata", {}).get("nbgrader", {}).get("grade_id")
                name = grade_id or cell.get("id") or f"cell-{place}"
                note = {"notebook": number, "cell": name}
                with ended_when_stuck(limit_s, file, note):
                    error, output = run("".join(cell["source"]), name, main_module, limit_s)
                write(file, note, error, output)
    os._exit(0)  # even if an answer has left threads


def write(file, note: dict, error: str | None, output: str = "") -> None:
    file.write(json.dumps(note | {"error": error, "output": output}) + "\n")


def run(source: str, name: str, module: types.ModuleType, limit_s: float) -> tuple[str | None, str]:
    """Run one cell. Returns the error as the student should read it (or None), and the output."""
    filename = f"<{name}>"
    source = "\n".join("pass" if NOT_PYTHON.match(line) else line for line in source.split("\n"))
    linecache.cache[filename] = (len(source), None, [f"{line}\n" for line in source.split("\n")], filename)
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            exec(compile(source, filename, "exec"), module.__dict__)
        except CellTimeout:
            error = f"not back within {limit_s:g} s: a loop without an end, or a collective that not all ranks enter"
        except BaseException as raised:  # SystemExit, too
            frames = [f for f in traceback.extract_tb(raised.__traceback__) if f.filename.startswith("<s")]  # of cells
            lines = [f"{frame.filename}, line {frame.lineno}:\n    {frame.line}" for frame in frames]
            error = "\n".join([*lines, *(line.rstrip() for line in traceback.format_exception_only(raised))])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return error, printed.getvalue()


def display(*values) -> None:
    print(*map(repr, values), sep="\n")


def raise_timeout(*_) -> None:
    raise CellTimeout


@contextlib.contextmanager
def ended_when_stuck(limit_s: float, file, note: dict):
    """End this process when a cell cannot be interrupted, and write that as its result."""
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
