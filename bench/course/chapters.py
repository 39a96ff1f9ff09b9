"""The chapters: text in ``tutorials/NN_name.md``, the same as a notebook beside it, executed to ``build/notebooks``.

The text is what is written and reviewed: Markdown in which every python fence is a cell (jupytext). The notebook is
made from it, without outputs and with cell names that depend on nothing but the order, so that it changes where the
text does. `bench notebooks --pair` makes it, and a test holds the two together.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path

from bench import files
from bench.course import commands
from bench.errors import RunFailed, UserError
from bench.launch import supervise
from bench.measure import environment
from bench.record import PROJECT

TUTORIALS = PROJECT / "tutorials"
BUILD = PROJECT / "build" / "notebooks"
CELL_LIMIT_S = 300  # no cell of a chapter comes near it, unless a machine is very busy
START_LIMIT_S = 180  # of a kernel


def chapters(names: str | None = None) -> list[Path]:
    """The texts of all chapters in reading order, or of those whose name begins with one of ``names``, "03,07".

    Raises UserError for a name that no chapter has.
    """
    found = sorted(TUTORIALS.glob("[0-9][0-9]_*.md"))
    wanted = [name.strip() for name in names.split(",")] if names else [""]
    for name in wanted:
        if not any(path.name.startswith(name) for path in found):
            raise UserError(f"no chapter begins with {name!r}: choose of {', '.join(path.stem for path in found)}")
    return [path for path in found if path.name.startswith(tuple(wanted))]


def notebook_of(path: Path):
    """A text as a notebook without outputs, the same for the same text."""
    jupytext = required("jupytext")
    notebook = jupytext.reads(Path(path).read_text(), fmt="md")
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02d}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def written(notebook) -> str:
    """A notebook as the text of its file: a line of a cell is a line of the file."""
    return required("nbformat").writes(notebook) + "\n"


def pair(paths: list[Path]) -> None:
    """Write the notebook beside every text."""
    for path in paths:
        with files.written_whole(path.with_suffix(".ipynb")) as temporary:
            temporary.write_text(written(notebook_of(path)))


def execute(path: Path, to: Path = BUILD, quick: bool = False) -> Path:
    """Run a chapter from top to bottom in a fresh kernel of this Python; returns the notebook with its outputs.

    quick: at the small sizes. Raises RunFailed with the cell's error; the notebook is written all the same, up to that
    cell, and is then not ``is_current``. Neither the kernel nor a process that a cell has started is left, also on
    Ctrl-C.
    """
    notebook = notebook_of(path)
    to.mkdir(parents=True, exist_ok=True)
    executed = to / f"{path.stem}.ipynb"
    try:
        run_cells(notebook, path.parent, {"COURSE_QUICK": str(int(quick))})
        notebook.metadata["course"] = {"text": digest(path), "quick": quick, "where": where()}
    except RunFailed as error:
        raise RunFailed(f"{path.name}: {error}; see {executed}") from None
    finally:
        with files.written_whole(executed) as temporary:
            temporary.write_text(written(notebook))
    return executed


def run_cells(notebook, folder: Path, variables: dict[str, str]) -> None:
    """Execute a notebook in place, in a fresh kernel. folder: the kernel's. Raises RunFailed in one line.

    nbclient runs in a thread of its own: in the main one it would take Ctrl-C as the death of the kernel.
    """
    nbclient = required("nbclient")
    mark = secrets.token_hex(8)
    own = {"PYTHONPATH": pythonpath(), "PYDEVD_DISABLE_FILE_VALIDATION": "1", **commands.marked_with(mark)}
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_LIMIT_S, startup_timeout=START_LIMIT_S, km=kernel(), coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    failure = []

    def work() -> None:
        try:
            client.execute(env={**os.environ, **variables, **own})
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        with supervise.signals_as_interrupt():
            while thread.is_alive():
                thread.join(0.5)
    finally:
        commands.end_marked(mark)  # with the kernel, if it is still there; then the thread ends, too
        thread.join(2 * commands.GRACE_S)
    if failure:
        raise RunFailed(in_one_line(failure[0], nbclient.exceptions)) from None


def in_one_line(error: BaseException, known) -> str:
    """What went wrong with a kernel or in a cell. known: nbclient's exceptions."""
    if isinstance(error, known.CellExecutionError):
        return f"{error.ename}: {(error.evalue.splitlines() or [''])[0]}"
    if isinstance(error, known.CellTimeoutError):
        return f"a cell took longer than {CELL_LIMIT_S} s"
    if isinstance(error, known.DeadKernelError):
        return "the kernel died: out of memory, or a crash in a library"
    if isinstance(error, RuntimeError) and "Kernel" in str(error):
        return f"the kernel did not start within {START_LIMIT_S} s: is this machine very busy?"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def digest(path: Path) -> str:
    """Which text a notebook was made from."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_current(path: Path, quick: bool = False, to: Path = BUILD) -> bool:
    """Whether a text has been executed to its end as it is now. quick: the small sizes are enough."""
    with contextlib.suppress(OSError, json.JSONDecodeError, AttributeError):
        made = json.loads((to / f"{path.stem}.ipynb").read_text())["metadata"].get("course", {})
        return made.get("text") == digest(path) and (quick or not made["quick"])
    return False


def where() -> str:
    """When and on what a chapter was executed, in one line."""
    machine = environment.describe_machine()
    versions = [f"{name} {version(name)}" for name in ("torch", "horovod") if version(name)]
    cores = environment.usable_cores()
    parts = [time.strftime("%Y-%m-%d"), machine["cpu_model"], f"{cores} cores", *versions]
    return ", ".join(map(str, filter(None, parts)))


def version(package: str) -> str | None:
    """The version of an installed package, without the part that says how it was built."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package).partition("+")[0]
    return None


def kernel():
    """A kernel of the Python that runs this, whatever kernel specs the user has."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]

    class Manager(AsyncKernelManager):
        # Only errors: it would warn that it speaks over TCP, which is this machine's own.
        kernel_spec = KernelSpec(argv=[*command, "--IPKernelApp.log_level=40"], display_name="Python 3",
                                 language="python")  # fmt: skip

    return Manager(kernel_name="python3")


def pythonpath() -> str:
    """PYTHONPATH with the project in front."""
    return os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))


def required(module: str):
    """A module of the notebooks extra. Raises UserError when it is missing."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(module)
    raise UserError(f"{module} is missing: run this by make, or `pip install -e '.[notebooks]'`")


def run(names: str | None, quick: bool, only_pair: bool) -> int:
    """The command: pair, then execute every chapter and say how long each took. Returns the exit code."""
    wanted = chapters(names)
    pair(wanted)
    if only_pair:
        return 0
    broken = 0
    for path in wanted:
        started = time.monotonic()
        try:
            executed, said = execute(path, quick=quick), ""
        except RunFailed as error:
            executed, said, broken = BUILD / f"{path.stem}.ipynb", f"  failed: {error}", broken + 1
        print(f"{time.monotonic() - started:6.1f} s  {executed.relative_to(PROJECT)}{said}", flush=True)
    return int(broken > 0)
