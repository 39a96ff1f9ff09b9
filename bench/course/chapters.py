"""The chapters: text in ``tutorials/NN_name.md``, the same as a notebook in the same folder, executed to
``build/notebooks``.

The text is what is written and reviewed: Markdown in which every python fence is a cell (jupytext). The notebook is
made from it, with cell names that depend on nothing but the order, so that it changes where the text does.
`bench notebooks --pair` makes it, and a test holds the two together. It shows the outputs of one execution at full
size, made small (``bench.course.light``), which `bench notebooks --outputs` renews: they stay while its code stays.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench import files
from bench.course.illustrations import without_pictures
from bench.course.shell import own_paths
from bench.errors import RunFailed, UserError
from bench.files import PROJECT
from bench.measure import environment
from bench.process import tree

TUTORIALS = PROJECT / "tutorials"
BUILD = PROJECT / "build" / "notebooks"
FAILED = "failed: "  # begins the line in which an execution says why
CELL_LIMIT_S = 300  # no cell of a chapter comes near it, unless a machine is very busy
START_LIMIT_S = 180  # of a kernel
# jsonschema would build a grammar of international addresses with it: a second, and nothing here has one.
ADDRESSES = "rfc3987_syntax"


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
    """A text as a notebook without outputs and pictures, the same for the same text."""
    jupytext = required("jupytext")
    try:
        text = files.read_plain(path).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    notebook = jupytext.reads(without_pictures(text), fmt="md")
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
    """Write the notebook of every text."""
    for path in paths:
        write(paired(path), path.with_suffix(".ipynb"))


def paired(path: Path):
    """A text as the notebook that is committed beside it: with the outputs that this has, if its code is the same."""
    notebook, made = notebook_of(path), path.with_suffix(".ipynb")
    shown = required("nbformat").read(made, 4) if made.exists() else notebook
    if code_digest(shown) == code_digest(notebook):
        take_outputs(shown, notebook)
    return notebook


def take_outputs(executed, notebook) -> None:
    """Give the code cells of a notebook the outputs of another with the same code, and where these were made."""
    for cell, its in zip(code_cells(notebook), code_cells(executed), strict=True):
        cell.outputs, cell.execution_count = its.outputs, its.execution_count
    if "course" in executed.metadata:
        notebook.metadata["course"] = executed.metadata["course"]


def show_outputs(path: Path, executed: Path) -> None:
    """Put the outputs of an executed chapter, made small, into the notebook that is committed."""
    from bench.course.light import made_light

    notebook = notebook_of(path)
    take_outputs(made_light(required("nbformat").read(executed, 4)), notebook)
    notebook.metadata["course"].pop("text")  # which changes with every word
    write(notebook, path.with_suffix(".ipynb"))


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code_digest(notebook) -> str:
    """Which code a notebook has, whatever its words."""
    return hashlib.sha256("\0".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()


def write(notebook, path: Path) -> None:
    with files.written_whole(path) as temporary:
        temporary.write_text(written(notebook))


def kernel_command() -> list[str]:
    """A kernel of the Python that runs this, whatever kernel specs the user has.

    Only its errors are logged: it would warn that it speaks over TCP, which is this machine's own.
    """
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return [*command, "--IPKernelApp.log_level=40"]


def execute(path: Path, to: Path = BUILD, quick: bool = False) -> Path:
    """Run a chapter from top to bottom in a fresh kernel of this Python; returns the notebook with its outputs.

    quick: at the small sizes. Raises RunFailed with the cell's error; the notebook is written all the same, up to that
    cell, and is then not ``is_current``. Neither the kernel nor a process that a cell has started is left, also on
    Ctrl-C.
    """
    nbformat = required("nbformat")
    to.mkdir(parents=True, exist_ok=True)
    executed = to / f"{path.stem}.ipynb"
    executed.write_text(written(notebook_of(path)))
    try:
        run_cells(executed, path.parent, {"COURSE_QUICK": str(int(quick))})
    except RunFailed as error:
        raise RunFailed(f"{path.name}: {error}; see {executed}") from None
    notebook = nbformat.read(executed, 4)
    notebook.metadata["course"] = {"text": digest(path), "quick": quick, "where": where()}
    write(notebook, executed)
    return executed


def run_cells(notebook: Path, folder: Path, variables: dict[str, str]) -> None:
    """Execute a notebook in place, in a fresh kernel. folder: the kernel's. Raises RunFailed in one line."""
    required("nbclient")
    command = [sys.executable, "-m", "bench.course.notebook", str(notebook.resolve()), str(folder)]
    command += [str(CELL_LIMIT_S), str(START_LIMIT_S)]
    environment = {**os.environ, **variables, **own_paths(), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    with tempfile.TemporaryFile("w+") as output:
        how = {"env": environment, "stdout": output, "stderr": output, "tied": True}
        code = tree.run(command, alone_s=tree.GRACE_S, **how)
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.strip()]
    if code:
        said = [line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)] or lines
        raise RunFailed(said[-1] if said else f"nothing was said, and the exit code is {code}")


def digest(path: Path) -> str:
    """Which text a notebook was made from."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_current(path: Path, quick: bool = False, to: Path = BUILD) -> bool:
    """Whether a text has been executed to its end as it is now. quick: the small sizes are enough."""
    with contextlib.suppress(OSError, json.JSONDecodeError, AttributeError):
        made = json.loads((to / f"{path.stem}.ipynb").read_text())["metadata"].get("course", {})
        return made.get("text") == digest(path) and (quick or not made["quick"])
    return False


def to_show(path: Path, quick: bool = False, to: Path = BUILD) -> Path | None:
    """The notebook with the outputs of a text: one that was executed here, or else the committed one, or none."""
    if is_current(path, quick, to):
        return to / f"{path.stem}.ipynb"
    made = path.with_suffix(".ipynb")
    shows = made.exists() and "course" in (notebook := required("nbformat").read(made, 4)).metadata
    return made if shows and code_digest(notebook) == code_digest(notebook_of(path)) else None


def shown(path: Path, quick: bool = False, to: Path = BUILD) -> Path:
    """The notebook with the outputs of a text; where there is none, it is executed. Raises RunFailed as ``execute``."""
    found = to_show(path, quick, to)
    if found is None:
        started = time.monotonic()
        found = execute(path, to, quick)
        print(f"{time.monotonic() - started:6.1f} s  {path.stem}", flush=True)
    return found


def where() -> str:
    """When and on what a chapter was executed, in one line."""
    machine = environment.describe_machine()
    versions = [f"{name} {version(name)}" for name in ("torch", "horovod") if version(name)]
    cores = environment.cores_in_words(environment.usable_cores())
    parts = [time.strftime("%Y-%m-%d"), machine["cpu_model"], cores, *versions]
    return ", ".join(map(str, filter(None, parts)))


def version(package: str) -> str | None:
    """The version of an installed package, without the part that says how it was built."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package).partition("+")[0]
    return None


def required(module: str):
    """A module of the notebooks extra. Raises UserError when it is missing."""
    sys.modules.setdefault(ADDRESSES, None)
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(module)
    raise UserError(f"{module} is missing: run this by make, or `pip install -e '.[notebooks]'`")


def run(names: str | None, quick: bool, only_pair: bool, outputs: bool) -> int:
    """The command: pair, then execute every chapter and say how long each took. Returns the exit code.

    outputs: what the cells gave goes into the committed notebooks. Raises UserError with ``quick`` or ``only_pair``.
    """
    if outputs and (quick or only_pair):
        raise UserError("the committed outputs are those of the full sizes: OUTPUTS=1 without QUICK and PAIR")
    wanted = chapters(names)
    pair(wanted)
    if only_pair:
        return 0
    broken = 0
    for path in wanted:
        started = time.monotonic()
        try:
            executed, said = execute(path, quick=quick), ""
            if outputs:
                show_outputs(path, executed)
        except RunFailed as error:
            executed, said, broken = BUILD / f"{path.stem}.ipynb", f"  failed: {error}", broken + 1
        print(f"{time.monotonic() - started:6.1f} s  {executed.relative_to(PROJECT)}{said}", flush=True)
    return int(broken > 0)
