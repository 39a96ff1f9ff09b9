"""The chapters: text in ``tutorials/NN_name.md``, the same as a notebook beside it, executed to ``build/notebooks``.

The text is what is written and reviewed: Markdown in which every python fence is a cell (jupytext). The notebook is
made from it, without outputs and with cell names that depend on nothing but the order, so that it changes where the
text does. `bench notebooks --pair` makes it, and a test holds the two together.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from bench import files
from bench.errors import RunFailed, UserError
from bench.record import PROJECT

TUTORIALS = PROJECT / "tutorials"
BUILD = PROJECT / "build" / "notebooks"
CELL_LIMIT_S = 300  # no cell of a chapter comes near it, unless a machine is very busy


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

    quick: at the small sizes. Raises RunFailed with the cell and its error; the notebook is written all the same, up to
    that cell. Neither the kernel nor a process that a cell has started is left.
    """
    nbclient = required("nbclient")
    notebook = notebook_of(path)
    variables = {"COURSE_QUICK": str(int(quick)), "PYTHONPATH": pythonpath(), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_LIMIT_S, km=kernel(), resources={"metadata": {"path": str(path.parent)}}
    )
    to.mkdir(parents=True, exist_ok=True)
    executed = to / f"{path.stem}.ipynb"
    try:
        client.execute(env={**os.environ, **variables})
    except nbclient.exceptions.CellExecutionError as error:
        raise RunFailed(f"{path.name}: {error.ename}: {error.evalue.splitlines()[0]}; see {executed}") from None
    except nbclient.exceptions.CellTimeoutError:
        raise RunFailed(f"{path.name}: a cell took longer than {CELL_LIMIT_S} s; see {executed}") from None
    finally:
        with files.written_whole(executed) as temporary:
            temporary.write_text(written(notebook))
    return executed


def kernel():
    """A kernel of the Python that runs this, whatever kernel specs the user has."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                                 display_name="Python 3", language="python")  # fmt: skip

    return Manager(kernel_name="python3")


def pythonpath() -> str:
    """PYTHONPATH with the project in front."""
    return os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))


def required(module: str):
    """A module of the notebooks extra. Raises UserError when it is missing."""
    import importlib

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
